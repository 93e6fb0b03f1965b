#include "device/generator.h"

#include <ATen/Utils.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>

#include "device/device.h"
#include "graph/capture.h"
#include "runtime/memory_stats.h"

namespace tpu::device {
namespace {

constexpr int64_t kStateBytes = 16;

}  // namespace

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(c10::default_rng_seed_val) {}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t GeneratorImpl::seed() {
  const uint64_t drawn = c10::detail::getNonDeterministicRandom(/*is_cuda=*/true);
  set_current_seed(drawn);
  return drawn;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK_TYPE(state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.device_type() == c10::DeviceType::CPU,
                   "RNG state must be a torch.ByteTensor");
  TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size: expected ", kStateBytes, " bytes, got ",
              state.numel());
  TORCH_CHECK(state.is_contiguous_default(c10::MemoryFormat::Contiguous), "RNG state must be contiguous");
  const auto* bytes = static_cast<const char*>(state.data());
  std::memcpy(&seed_, bytes, 8);
  std::memcpy(&offset_, bytes + 8, 8);
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  at::Tensor state = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* bytes = static_cast<char*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, 8);
  std::memcpy(bytes + 8, &offset_, 8);
  return state.getIntrusivePtr();
}

void GeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  auto* other = dynamic_cast<GeneratorImpl*>(state.get());
  TORCH_CHECK_TYPE(other != nullptr, "expected the state of a tpu generator");
  seed_ = other->seed_;
  offset_ = other->offset_;
}

c10::intrusive_ptr<c10::GeneratorImpl> GeneratorImpl::graphsafe_get_state() const {
  return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
}

GeneratorImpl::Philox GeneratorImpl::take(uint64_t blocks) {
  const Philox state{seed_, offset_};
  offset_ += blocks;
  return state;
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device_.index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* const generators = [] {
    auto* all = new std::array<at::Generator, runtime::kMaxDevices>;
    for (int i = 0; i < runtime::kMaxDevices; ++i) (*all)[i] = new_generator(static_cast<c10::DeviceIndex>(i));
    return all;
  }();
  return (*generators)[static_cast<size_t>(device < 0 ? current_device() : device)];
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<GeneratorImpl>(device < 0 ? current_device() : device);
}

std::shared_ptr<const graph::RandomStream> random_stream(const at::Generator& generator) {
  auto* const state = static_cast<GeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  const auto take = [generator, state](uint64_t blocks) {
    std::lock_guard lock(state->mutex_);
    const GeneratorImpl::Philox philox = state->take(blocks);
    return graph::RandomDraw{philox.seed, philox.offset};
  };
  const auto set = [generator, state](graph::RandomDraw draw) {
    std::lock_guard lock(state->mutex_);
    state->set_current_seed(draw.seed);
    state->set_offset(draw.offset);
  };
  return std::make_shared<const graph::RandomStream>(graph::RandomStream{state, take, set});
}

}  // namespace tpu::device
