// Operations of the CHLO dialect, which the compilers' front ends expand.

#include "base/error.h"
#include "stablehlo/emit.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

Value chlo(const char* op, Value x) {
  check(is_floating(x.dtype()), op, "needs a floating-point operand", {x});
  std::string text = "chlo.";
  text += op;
  append_operands(text, {&x, 1});
  text += " : ";
  append_type(text, x.type());
  text += " -> ";
  append_type(text, x.type());
  return x.builder().emit_one(std::move(text), x.type());
}

}  // namespace

Value erf(Value x) { return chlo("erf", x); }
Value erfc(Value x) { return chlo("erfc", x); }
Value erf_inv(Value x) { return chlo("erf_inv", x); }
Value lgamma(Value x) { return chlo("lgamma", x); }
Value digamma(Value x) { return chlo("digamma", x); }

}  // namespace tpu::stablehlo
