#pragma once
// Random state of a device: Philox key (seed) and counter (offset). The 16-byte state tensor holds the seed
// in bytes 0-7 and the offset in bytes 8-15, little-endian, which is how DTensor reads it.

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <memory>

namespace tpu::graph {
struct RandomStream;
}

namespace tpu::device {

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  struct Philox {
    uint64_t seed;
    uint64_t offset;
  };
  /// Takes `blocks` counters (four 32-bit numbers each). REQUIRES: mutex_ is held.
  Philox take(uint64_t blocks);

 private:
  GeneratorImpl* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
/// A generator of this device type, for captures.
std::shared_ptr<const graph::RandomStream> random_stream(const at::Generator& generator);

}  // namespace tpu::device
