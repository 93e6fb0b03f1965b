#pragma once
// The user's line for a call. In the backward pass no Python frame says which line a gradient belongs to, so
// forward calls leave their line under the sequence number that autograd gives their node, and backward
// calls look it up.

#include "base/location.h"

namespace tpu::aten {

Location call_site();

}  // namespace tpu::aten
