// SPDX-License-Identifier: Apache-2.0
// Implements: the hashes of a program (program.h), over every field of its structs except labels.
#include <bit>

#include "program/program.h"

namespace hocket::program {
namespace {

class ProgramHasher {
 public:
  template <HasFields Struct>
  void add(const Struct& object) {
    for_each_field<Struct>([&](const Field& field, auto member) {
      if (!field.is_label && !field.is_cache && !label_of_step(field, object)) {
        add(object.*member);
      }
    });
    if (words_.size() > kBatch) {
      flush();
    }
  }

  Hash128 finish() {
    flush();
    return hasher_.finish();
  }

 private:
  static constexpr size_t kBatch = 4096;

  static bool label_of_step(const Field& field, const Buffer& buffer) {
    return field.is_label_of_step && buffer.kind == BufferKind::step;
  }
  template <class Struct>
  static bool label_of_step(const Field&, const Struct&) {
    return false;
  }

  // One overload per type that a field may have. Lists begin with their length, so that no two
  // different programs give the same words.
  template <class Number>
  requires std::is_integral_v<Number> || std::is_enum_v<Number>
  void add(Number value) { words_.push_back(static_cast<uint64_t>(value)); }
  template <class Of>
  void add(Id<Of> value) {
    add(value.value());
  }
  void add(double value) { words_.push_back(std::bit_cast<uint64_t>(value)); }
  void add(OutputSet value) { add(value.bits()); }
  void add(const std::string& value) {
    const Hash128 hash = hash128(value);
    words_.push_back(hash.high);
    words_.push_back(hash.low);
  }
  void add(const Attrs& value) { add(to_string(value)); }
  void add(const TensorType& value) {
    // One word, which is the dtype alone for most.
    add(static_cast<uint64_t>(value.dtype) | static_cast<uint64_t>(value.encoding.scale) << 8 |
        static_cast<uint64_t>(value.encoding.block) << 16 | uint64_t{value.symbolic()} << 63);
    add(value.top_k);
    add(value.dims.size());
    for (const graph::Dim& dim : value.dims) {
      add(int64_t{dim});
      if (value.symbolic()) {
        add(dim.symbol());
        add(dim.parts());
        add(dim.multiple());
      }
    }
  }
  void add(const Symbol& value) {
    add(value.name);
    add(value.bound);
    add(value.expected);
    add(value.divisor);
  }
  void add(const graph::Axis& value) {
    add(value.name);
    add(value.size);
  }
  void add(const Mesh& value) { add(value.axes); }
  void add(const Box& value) {
    for (const Interval& on : value.on) {
      add(on.begin);
      add(on.count);
    }
  }
  void add(const Layout& value) {
    for (size_t axis = 0; axis < value.on.size(); ++axis) {
      add(value.on[axis].code);
      add(value.outside[axis]);
    }
    add(value.given.size());
    for (const graph::GivenSizes& given : value.given) {
      add(given.dim);
      add(given.sizes);
    }
  }
  void add(const Slot& value) {
    add(value.tensor);
    add(value.layout);
    add(value.begin);
  }
  void add(const KindIndex&) {}
  void add(const PieceOffset& value) {
    add(value.letter);
    add(value.begin);
    add(value.by);
  }
  void add(const PartDep& value) {
    add(value.own);
    add(value.task);
    add(value.part);
  }
  template <class Item>
  void add(const std::vector<Item>& list) {
    add(list.size());
    for (const Item& item : list) {
      add(item);
    }
  }

  void flush() {
    hasher_.add(std::string_view(reinterpret_cast<const char*>(words_.data()),
                                 words_.size() * sizeof(uint64_t)));
    words_.clear();
  }

  std::vector<uint64_t> words_;
  Hasher hasher_;
};

}  // namespace

Hash128 program_hash(const Program& program) {
  ProgramHasher hasher;
  hasher.add(program);
  return hasher.finish();
}

}  // namespace hocket::program
