#include "base/location.h"

#include <utility>

namespace tpu {
namespace {

LocationProvider provider;
thread_local Location override_location;

}  // namespace

void set_location_provider(LocationProvider value) { provider = value; }

Location capture_location() {
  if (override_location.code != nullptr) return override_location;
  return provider.capture != nullptr ? provider.capture() : Location{};
}

std::string describe(const Location& location) {
  if (location.code == nullptr || provider.describe == nullptr) return "";
  return provider.describe(location);
}

ScopedLocation::ScopedLocation(Location location) : saved_(std::exchange(override_location, location)) {}
ScopedLocation::~ScopedLocation() { override_location = saved_; }

}  // namespace tpu
