#pragma once
// Where in the user's Python program a node was recorded. Taking one must cost tens of nanoseconds, so it
// holds an interned code object and an instruction offset; the text is made only when a message needs it.
// The Python layer installs the two functions; without it locations are unknown.

#include <cstdint>
#include <string>

namespace tpu {

struct Location {
  const void* code = nullptr;  // kept alive by the provider
  int32_t instruction = 0;
  friend bool operator==(const Location&, const Location&) = default;
};

struct LocationProvider {
  Location (*capture)() = nullptr;
  std::string (*describe)(const Location&) = nullptr;
};

void set_location_provider(LocationProvider provider);
/// The current Python line of this thread, or an unknown location.
Location capture_location();
/// "file.py:12", or "" when unknown.
std::string describe(const Location& location);

/// Replaces what capture_location() returns on this thread while it lives: backward nodes carry the
/// location of the forward call that made them.
class ScopedLocation {
 public:
  explicit ScopedLocation(Location location);
  ~ScopedLocation();
  ScopedLocation(const ScopedLocation&) = delete;
  ScopedLocation& operator=(const ScopedLocation&) = delete;

 private:
  Location saved_;
};

}  // namespace tpu
