#pragma once
// Dims: a short list of int64 (sizes, strides, axes) that lives inline up to kInline entries.
// Shapes are copied on every operator call, so they must not touch the heap at usual ranks.
// Not thread-safe; copies are independent.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

namespace tpu {

class Dims {
 public:
  static constexpr size_t kInline = 6;

  Dims() = default;
  Dims(std::initializer_list<int64_t> list) { assign(list.begin(), list.size()); }
  explicit Dims(std::span<const int64_t> list) { assign(list.data(), list.size()); }
  Dims(size_t count, int64_t value) {
    resize(count);
    std::fill(begin(), end(), value);
  }
  template <typename It>
  Dims(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }
  Dims(const Dims& other) { assign(other.data(), other.size()); }
  Dims(Dims&& other) noexcept { take(other); }
  Dims& operator=(const Dims& other) {
    if (this != &other) assign(other.data(), other.size());
    return *this;
  }
  Dims& operator=(Dims&& other) noexcept {
    if (this != &other) take(other);
    return *this;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t* data() { return heap_ ? heap_.get() : inline_; }
  const int64_t* data() const { return heap_ ? heap_.get() : inline_; }
  int64_t* begin() { return data(); }
  int64_t* end() { return data() + size_; }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t& operator[](size_t i) { return data()[i]; }
  int64_t operator[](size_t i) const { return data()[i]; }
  int64_t& front() { return data()[0]; }
  int64_t& back() { return data()[size_ - 1]; }
  int64_t front() const { return data()[0]; }
  int64_t back() const { return data()[size_ - 1]; }
  operator std::span<const int64_t>() const { return {data(), size_}; }

  void clear() { size_ = 0; }
  void resize(size_t count, int64_t value = 0) {
    reserve(count);
    if (count > size_) std::fill(data() + size_, data() + count, value);
    size_ = count;
  }
  void push_back(int64_t value) {
    if (size_ == capacity_) reserve(size_ * 2);
    data()[size_++] = value;
  }
  void pop_back() { --size_; }
  void insert(size_t at, int64_t value) {
    push_back(0);
    std::move_backward(begin() + at, end() - 1, end());
    (*this)[at] = value;
  }
  void erase(size_t at) {
    std::move(begin() + at + 1, end(), begin() + at);
    --size_;
  }

  friend bool operator==(const Dims& a, const Dims& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  void reserve(size_t count) {
    if (count <= capacity_) return;
    auto grown = std::make_unique<int64_t[]>(count);
    std::copy(begin(), end(), grown.get());
    heap_ = std::move(grown);
    capacity_ = count;
  }
  void assign(const int64_t* values, size_t count) {
    reserve(count);
    std::copy(values, values + count, data());
    size_ = count;
  }
  void take(Dims& other) noexcept {
    heap_ = std::move(other.heap_);
    capacity_ = heap_ ? other.capacity_ : kInline;
    size_ = other.size_;
    if (!heap_) std::copy(other.inline_, other.inline_ + size_, inline_);
    other.size_ = 0;
    other.capacity_ = kInline;
  }

  std::unique_ptr<int64_t[]> heap_;
  size_t capacity_ = kInline;
  size_t size_ = 0;
  int64_t inline_[kInline];
};

/// Product of all entries; 1 for none.
int64_t product(std::span<const int64_t> dims);

/// Row-major strides in elements: {2, 3, 4} -> {12, 4, 1}. Sizes of 0 count as 1, as in PyTorch.
Dims contiguous_strides(std::span<const int64_t> sizes);

/// "[2, 3, 4]"
std::string to_string(std::span<const int64_t> dims);

/// 0, 1, ..., count - 1
Dims iota(size_t count);

}  // namespace tpu
