#pragma once
// A cache of equally sized memory blocks for objects that one thread makes and another frees (values, launch
// tasks). malloc takes a lock on the maker's arena for each such free; here blocks travel back in batches.
// Blocks are never given back to the system. Thread-safe.

#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

namespace tpu {

template <size_t kBytes>
class BlockPool {
 public:
  static void* allocate() {
    auto& cache = local();
    if (cache.empty()) refill(cache);
    if (cache.empty()) return ::operator new(kBytes);
    void* block = cache.back();
    cache.pop_back();
    return block;
  }
  static void release(void* block) {
    auto& cache = local();
    cache.push_back(block);
    if (cache.size() >= 2 * kBatch) spill(cache);
  }

 private:
  static constexpr size_t kBatch = 64;
  struct Shared {
    std::mutex mutex;
    std::vector<std::vector<void*>> batches;
  };
  static Shared& shared() {
    static auto* const instance = new Shared;  // outlives every thread
    return *instance;
  }
  // Leaked with its thread: threads of this engine live as long as the process.
  static std::vector<void*>& local() {
    thread_local auto* const cache = [] {
      auto* made = new std::vector<void*>;
      made->reserve(2 * kBatch);
      return made;
    }();
    return *cache;
  }
  static void refill(std::vector<void*>& cache) {
    std::lock_guard lock(shared().mutex);
    if (shared().batches.empty()) return;
    cache.insert(cache.end(), shared().batches.back().begin(), shared().batches.back().end());
    shared().batches.pop_back();
  }
  static void spill(std::vector<void*>& cache) {
    std::vector<void*> batch(cache.end() - kBatch, cache.end());
    cache.resize(cache.size() - kBatch);
    std::lock_guard lock(shared().mutex);
    shared().batches.push_back(std::move(batch));
  }
};

/// Gives a final class its own pool: `class Value : public Pooled<Value>`.
template <typename T>
class Pooled {
 public:
  static void* operator new(size_t) { return BlockPool<sizeof(T)>::allocate(); }
  static void operator delete(void* block) { BlockPool<sizeof(T)>::release(block); }
};

}  // namespace tpu
