#include "aten/signature.h"

#include <ATen/Context.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <c10/core/DefaultDtype.h>

#include <bit>
#include <unordered_map>

#include "aten/changing_sizes.h"
#include "base/hash.h"
#include "device/dtypes.h"
#include "device/storage.h"

namespace tpu::aten {
namespace {

// Tags keep words of different kinds apart, so that equal keys mean equal calls.
enum Tag : uint64_t { kNone = 1, kTensor, kNumber, kList, kWord, kText, kBounds };

uint64_t tagged(Tag tag, uint64_t payload) { return static_cast<uint64_t>(tag) << 56 | payload; }

// What else changes metadata or code: the default dtype, determinism, whether sizes may change, and for products (the
// rows marked heavy) float32 matmul precision, which takes PyTorch a table lookup.
uint64_t state_word(bool heavy) {
  const at::Context& context = at::globalContext();
  const auto dtype = static_cast<uint64_t>(c10::get_default_dtype_as_scalartype());
  const auto precision = heavy ? static_cast<uint64_t>(context.float32MatmulPrecision()) : uint64_t{0};
  const bool fixed_sizes = bounded_sizes() == BoundedSizes::kOff;
  return tagged(
      kWord, dtype | precision << 8 | uint64_t{context.deterministicAlgorithms()} << 16 | uint64_t{fixed_sizes} << 17);
}

class Parser {
 public:
  Parser(Signature& signature, const Operator& op, uint64_t gather) : s_(signature), op_(op), gather_(gather) {}

  void argument(ArgKind kind, size_t index, const c10::IValue& value) {
    if (value.isNone() && kind != ArgKind::kGenerator && kind != ArgKind::kIgnored) {
      s_.key.push_back(tagged(kNone, 0));
      return;
    }
    switch (kind) {
      case ArgKind::kTensor:
        tensor(value.toTensor(), index);
        break;
      case ArgKind::kTensorList:
        tensor_list(value, index);
        break;
      case ArgKind::kScalar:
        scalar(value.toScalar(), index);
        break;
      case ArgKind::kScalarList:
        scalar_list(value, index);
        break;
      case ArgKind::kFloat:
        floating(value.toDouble(), index);
        break;
      case ArgKind::kInt:
        word(static_cast<uint64_t>(value.toInt()));
        break;
      case ArgKind::kBool:
        word(value.toBool());
        break;
      case ArgKind::kDType:
        word(static_cast<uint64_t>(value.toInt()));
        break;
      case ArgKind::kIntList:
        int_list(value);
        break;
      case ArgKind::kFloatList:
        float_list(value);
        break;
      case ArgKind::kBoolList:
        bool_list(value);
        break;
      case ArgKind::kString:
        text(value.toStringRef());
        break;
      case ArgKind::kGenerator:
      case ArgKind::kIgnored:
        break;
    }
  }

  void tensor(const at::Tensor& tensor, size_t index) {
    if (!tensor.defined()) {
      s_.key.push_back(tagged(kNone, 0));
    } else if (tensor.device().is_privateuseone()) {
      device_tensor(tensor);
    } else if (is_number(tensor)) {
      number(number_of(tensor), tensor.scalar_type(), index,
             1 + uint64_t{tensor.unsafeGetTensorImpl()->is_wrapped_number()});
    } else {
      // CUDA's wording, which code and tests match on.
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
                  s_.device >= 0 ? c10::Device(c10::DeviceType::PrivateUse1, s_.device)
                                 : c10::Device(c10::DeviceType::PrivateUse1, 0),
                  " and ", tensor.device(), "! (when checking argument in method ", op_.name, ")");
    }
  }

 private:
  void word(uint64_t value) {
    s_.key.push_back(tagged(kWord, 0));
    s_.key.push_back(value);
  }

  void device_tensor(const at::Tensor& tensor) {
    const c10::DeviceIndex device = tensor.device().index();
    if (s_.device < 0) {
      s_.device = device;
    } else if (s_.device != device) {
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
                  c10::Device(c10::DeviceType::PrivateUse1, s_.device), " and ", tensor.device(),
                  "! (when checking argument in method ", op_.name, ")");
    }
    const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    s_.marked |= impl.is_conj() || impl.is_neg();
    runtime::ValueRef value = device::slot_of(tensor).load();
    const TensorType& base = value->type();
    const auto dtype = static_cast<uint64_t>(tensor.scalar_type());
    const c10::IntArrayRef sizes = impl.sizes();
    const bool identity = impl.storage_offset() == 0 && impl.is_contiguous_default(at::MemoryFormat::Contiguous) &&
                          sizes.size() == base.dims.size() &&
                          std::equal(sizes.begin(), sizes.end(), base.dims.begin()) &&
                          device::to_scalar_type(base.dtype) == tensor.scalar_type();
    const bool gather = (gather_ >> s_.tensors.size() & 1) != 0;
    s_.key.push_back(tagged(kTensor, dtype | uint64_t{identity} << 8 | uint64_t{gather} << 9 | sizes.size() << 16));
    for (int64_t size : sizes) s_.key.push_back(static_cast<uint64_t>(size));
    if (!identity) {
      for (int64_t stride : impl.strides()) s_.key.push_back(static_cast<uint64_t>(stride));
      s_.key.push_back(static_cast<uint64_t>(base.dtype) << 32 | base.dims.size());
      for (int64_t dim : base.dims) s_.key.push_back(static_cast<uint64_t>(dim));
    }
    if (const Bounds* const bounds = value->bounds()) {
      s_.bounded = true;
      s_.key.push_back(tagged(kBounds, bounds->dims & 0xffffffff));
      for (int64_t dim : bounds->stored) s_.key.push_back(static_cast<uint64_t>(dim));
    }
    s_.tensors.push_back({&tensor, std::move(value), identity, gather});
  }

  void number(lowering::Scalar value, c10::ScalarType dtype, size_t index, uint64_t origin) {
    const bool runtime = (op_.row->runtime_args >> index & 1) != 0;
    const bool fixed = (op_.row->static_args >> index & 1) != 0;
    s_.key.push_back(tagged(kNumber, static_cast<uint64_t>(dtype) | origin << 8));
    if (fixed) {
      s_.key.push_back(static_cast<uint64_t>(value.i));
      s_.key.push_back(std::bit_cast<uint64_t>(value.z.real()));
      s_.key.push_back(std::bit_cast<uint64_t>(value.z.imag()));
    }
    s_.scalars.push_back({value, dtype, runtime, fixed});
  }

  void scalar(const c10::Scalar& value, size_t index) { number(to_scalar(value), value.type(), index, 0); }

  void floating(double value, size_t index) {
    if ((op_.row->runtime_args >> index & 1) != 0) {
      scalar(value, index);
    } else {
      word(std::bit_cast<uint64_t>(value));
    }
  }

  void tensor_list(const c10::IValue& value, size_t index) {
    const auto list = value.toListRef();
    s_.key.push_back(tagged(kList, list.size()));
    for (const c10::IValue& element : list) {
      if (element.isNone()) {
        s_.key.push_back(tagged(kNone, 0));
      } else {
        tensor(element.toTensor(), index);
      }
    }
  }

  void scalar_list(const c10::IValue& value, size_t index) {
    const auto list = value.toListRef();
    s_.key.push_back(tagged(kList, list.size()));
    for (const c10::IValue& element : list) scalar(element.toScalar(), index);
  }

  void int_list(const c10::IValue& value) {
    const auto list = value.toIntVector();
    s_.key.push_back(tagged(kList, list.size()));
    for (int64_t element : list) s_.key.push_back(static_cast<uint64_t>(element));
  }

  void float_list(const c10::IValue& value) {
    const auto list = value.toDoubleVector();
    s_.key.push_back(tagged(kList, list.size()));
    for (double element : list) s_.key.push_back(std::bit_cast<uint64_t>(element));
  }

  void bool_list(const c10::IValue& value) {
    const auto list = value.toBoolList();
    s_.key.push_back(tagged(kList, list.size()));
    for (bool element : list) s_.key.push_back(element);
  }

  void text(const std::string& value) {
    s_.key.push_back(tagged(kText, value.size()));
    for (size_t i = 0; i < value.size(); i += 8) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, value.data() + i, std::min<size_t>(8, value.size() - i));
      s_.key.push_back(bytes);
    }
  }

  Signature& s_;
  const Operator& op_;
  const uint64_t gather_;
};

}  // namespace

bool is_number(const at::Tensor& tensor) { return tensor.device().is_cpu() && tensor.dim() == 0; }

lowering::Scalar to_scalar(const c10::Scalar& value) {
  using Kind = lowering::Scalar::Kind;
  if (value.isBoolean()) return {Kind::kBool, value.toBool(), 0};
  if (value.isFloatingPoint()) return {Kind::kDouble, 0, value.toDouble()};
  if (value.isComplex()) {
    const c10::complex<double> z = value.toComplexDouble();
    return {Kind::kComplex, 0, {z.real(), z.imag()}};
  }
  if (value.type() == c10::ScalarType::UInt64) return {Kind::kInt, static_cast<int64_t>(value.toUInt64()), 0};
  return {Kind::kInt, value.toLong(), 0};
}

lowering::Scalar number_of(const at::Tensor& tensor) { return to_scalar(at::_local_scalar_dense(tensor)); }

void Signature::parse(const Operator& op, at::ArrayRef<c10::IValue> arguments, uint64_t gather) {
  key.clear();
  tensors.clear();
  scalars.clear();
  device = -1;
  marked = false;
  bounded = false;
  key.push_back(state_word(op.row->heavy));
  Parser parser(*this, op, gather);
  for (size_t i = 0; i < op.kinds.size(); ++i) parser.argument(op.kinds[i], i, arguments[i]);
  for (size_t i = op.kinds.size(); i < arguments.size(); ++i) parser.argument(ArgKind::kTensor, i, arguments[i]);
  if (op.writes_several) add_sharing();
}

// Which tensors are windows of one storage decides how the windows that are written build on each other.
void Signature::add_sharing() {
  std::unordered_map<const runtime::StorageSlot*, size_t> first_of;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t first = first_of.emplace(&device::slot_of(*tensors[i].tensor), i).first->second;
    if (first != i) key.push_back(tagged(kWord, i << 24 | first));
  }
}

uint64_t Signature::hash() const { return table_hash(hash_words(key.data(), key.size())); }

}  // namespace tpu::aten
