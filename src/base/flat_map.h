// SPDX-License-Identifier: Apache-2.0
// A hash table for tables of millions of small values: open addressing with linear probing, keys
// and values side by side, at most half full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace hocket {

/// Position of a key by its bits: mixed, or unchanged for keys that are hashes already.
struct MixedBits {
  uint64_t operator()(uint64_t key) const { return mix64(key); }
};
struct OwnBits {
  uint64_t operator()(uint64_t key) const { return key; }
};

/// Hash table with 64-bit keys, any but kNoKey. A key may have several values, distinguished by
/// `same`, since a hash may belong to several texts. Pointers to values are valid until the next
/// insert() or clear(). Values are copied when the table grows, and never removed one by one.
template <class Value, class Spread = MixedBits>
class FlatMap {
 public:
  static constexpr uint64_t kNoKey = ~uint64_t{0};

  /// Makes room for `expected` entries before the map grows.
  explicit FlatMap(size_t expected = 0) : slots_(slots_for(expected)) {}

  size_t size() const { return size_; }
  void clear() {
    slots_.assign(slots_.size(), Slot());
    size_ = 0;
  }

  /// Returns the value of a key; null: there is none.
  const Value* find(uint64_t key) const { return find(key, any); }
  template <class Same>
  const Value* find(uint64_t key, const Same& same) const {
    const Slot& slot = slots_[place(key, same)];
    return slot.key == kNoKey ? nullptr : &slot.value;
  }

  /// Returns the existing value or the inserted `value`, and whether it is new.
  std::pair<Value*, bool> insert(uint64_t key, const Value& value) {
    return insert(key, value, any);
  }
  template <class Same>
  std::pair<Value*, bool> insert(uint64_t key, const Value& value, const Same& same) {
    if (2 * (size_ + 1) > slots_.size()) {
      grow();
    }
    Slot& slot = slots_[place(key, same)];
    const bool is_new = slot.key == kNoKey;
    if (is_new) {
      slot = {key, value};
      ++size_;
    }
    return {&slot.value, is_new};
  }

 private:
  struct Slot {
    uint64_t key = kNoKey;
    Value value{};
  };

  static bool any(const Value&) { return true; }
  static bool none(const Value&) { return false; }

  static size_t slots_for(size_t entries) {
    size_t slots = 16;
    while (slots < 2 * entries) {
      slots *= 2;
    }
    return slots;
  }

  // Returns the slot of the key's value, or the empty slot for it.
  template <class Same>
  size_t place(uint64_t key, const Same& same) const {
    const size_t mask = slots_.size() - 1;
    size_t i = Spread()(key) & mask;
    while (slots_[i].key != kNoKey && !(slots_[i].key == key && same(slots_[i].value))) {
      i = (i + 1) & mask;
    }
    return i;
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kNoKey) {
        slots_[place(slot.key, none)] = slot;
      }
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace hocket
