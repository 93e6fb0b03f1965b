#include "aten/changing_sizes.h"

#include <ATen/Context.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "graph/capture.h"

namespace tpu::aten {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// What one place made lately.
struct Site {
  struct Made {
    c10::SmallVector<int64_t, 5> sizes;
    std::optional<WeakStorage> storage;
    bool alive() const { return storage && !storage->expired(); }
  };
  std::array<Made, kDistinctSizes> made;  // of distinct sizes; the oldest is replaced
  size_t count = 0, next = 0;
  uint64_t changing = 0;
};

std::mutex mutex;

std::unordered_map<uint64_t, Site>& sites() {
  static auto* const all = new std::unordered_map<uint64_t, Site>;
  return *all;
}

std::atomic<int> chosen{-1};
thread_local int fixed = 0;

// The dims in which all of these differ. Several may, if they are of equal size each time, as the two of a mask are.
uint64_t differing_dims(const Site& site, c10::IntArrayRef sizes) {
  uint64_t differing = 0;
  for (const Site::Made& made : site.made) {
    if (made.sizes.size() != sizes.size()) return 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (made.sizes[i] != sizes[i]) differing |= uint64_t{1} << i;
    }
  }
  const auto one_size = [&](c10::IntArrayRef each) {
    std::optional<int64_t> size;
    for (size_t i = 0; i < each.size(); ++i) {
      if ((differing >> i & 1) == 0) continue;
      if (size && *size != each[i]) return false;
      size = each[i];
    }
    return true;
  };
  const bool related = one_size(sizes) && std::all_of(site.made.begin(), site.made.end(),
                                                      [&](const Site::Made& made) { return one_size(made.sizes); });
  return related ? differing : 0;
}

}  // namespace

namespace {

std::array<std::atomic<int64_t>, 16> recent_sizes;
std::atomic<uint32_t> recent_count{0};

}  // namespace

void changed_to(int64_t size) {
  if (size <= 1) return;
  if (graph::Capture* const capture = graph::Capture::current()) {
    capture->changes_to(size, bound_of(size));
  } else if (!was_changed_to(size)) {
    recent_sizes[recent_count.fetch_add(1) % recent_sizes.size()].store(size);
  }
}

int64_t changing_bound(int64_t size) {
  if (size <= 1) return 0;
  if (const graph::Capture* const capture = graph::Capture::current()) return capture->changing_bound(size);
  const bool recent = std::any_of(recent_sizes.begin(), recent_sizes.end(),
                                  [size](const std::atomic<int64_t>& each) { return each.load() == size; });
  return recent ? bound_of(size) : 0;
}

int64_t stored_size(int64_t size) {
  const int64_t known = changing_bound(size);
  return known != 0 ? known : bound_of(size);
}

FixedSizes::FixedSizes() { ++fixed; }
FixedSizes::~FixedSizes() { --fixed; }

BoundedSizes bounded_sizes() {
  if (fixed > 0) return BoundedSizes::kOff;
  int setting = chosen.load(std::memory_order_relaxed);
  if (setting < 0) {
    setting = static_cast<int>(parse_bounded_sizes(env::text(env::kBoundedSizes).value_or("auto")));
    chosen.store(setting);
  }
  return static_cast<BoundedSizes>(setting);
}

void set_bounded_sizes(BoundedSizes setting) {
  std::lock_guard lock(mutex);
  sites().clear();
  for (auto& recent : recent_sizes) recent.store(0);
  chosen.store(static_cast<int>(setting));
}

BoundedSizes parse_bounded_sizes(const std::string& text) {
  if (text == "off") return BoundedSizes::kOff;
  if (text == "auto") return BoundedSizes::kAuto;
  if (text == "always") return BoundedSizes::kAlways;
  throw Error(Code::kValue, std::string(env::kBoundedSizes) + " must be 'off', 'auto' or 'always', got '" + text + "'");
}

std::string to_string(BoundedSizes setting) {
  return setting == BoundedSizes::kOff ? "off" : setting == BoundedSizes::kAuto ? "auto" : "always";
}

uint64_t size_site(const Location& location, uint64_t kind) {
  return mix(mix(reinterpret_cast<uint64_t>(location.code), static_cast<uint64_t>(location.instruction)), kind);
}

uint64_t changing_dims(uint64_t site, c10::IntArrayRef sizes) {
  const BoundedSizes setting = bounded_sizes();
  uint64_t larger = 0;  // sizes of 0 and 1 are never taken to change
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) larger |= uint64_t{1} << i;
  }
  if (setting == BoundedSizes::kOff || larger == 0 || sizes.size() > 32) return 0;
  if (setting == BoundedSizes::kAlways) return larger;
  // What a line made before must not decide how a result is rounded.
  if (at::globalContext().deterministicAlgorithms()) return 0;
  std::lock_guard lock(mutex);
  Site& here = sites()[site];
  if (here.changing != 0) return here.changing & larger;
  for (size_t i = 0; i < here.count; ++i) {
    if (sizes.equals({here.made[i].sizes.data(), here.made[i].sizes.size()})) return 0;
  }
  if (here.count == kDistinctSizes) {
    // The one before may be held by a variable that is about to be assigned.
    const auto alive = std::count_if(here.made.begin(), here.made.end(), [](const auto& made) { return made.alive(); });
    if (alive <= 1) here.changing = differing_dims(here, sizes);
    if (here.changing != 0) {
      here.made = {};
      return here.changing & larger;
    }
  }
  here.made[here.next] = {{sizes.begin(), sizes.end()}, std::nullopt};
  here.next = (here.next + 1) % kDistinctSizes;
  here.count = std::min(here.count + 1, kDistinctSizes);
  return 0;
}

void made_at(uint64_t site, const at::Tensor& tensor) {
  if (bounded_sizes() != BoundedSizes::kAuto) return;
  std::lock_guard lock(mutex);
  const auto found = sites().find(site);
  if (found == sites().end()) return;
  for (Site::Made& made : found->second.made) {
    if (!tensor.sizes().equals({made.sizes.data(), made.sizes.size()})) continue;
    made.storage =
        WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
  }
}

}  // namespace tpu::aten
