#pragma once
// From the core's Error to the exception that PyTorch raises for the same mistake. Every function that
// PyTorch calls wraps its body in `translate`.

#include <utility>

#include "base/error.h"

namespace tpu::device {

[[noreturn]] void raise(const Error& error);

template <typename Body>
auto translate(Body&& body) -> decltype(body()) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    raise(error);
  }
}

}  // namespace tpu::device
