// SPDX-License-Identifier: Apache-2.0
// A corrupt program (any integer anywhere replaced) gives a verdict, never a crash.
#include <gtest/gtest.h>

#include <functional>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::check {
namespace {

/// Collects every integer of a program, as something to overwrite.
class Integers {
 public:
  std::vector<std::function<void(int64_t)>> writers;

  template <program::HasFields Struct>
  void add(Struct& object) {
    program::for_each_field<Struct>(
        [&](const program::Field&, auto member) { add(object.*member); });
  }

 private:
  template <class Number>
  requires std::is_integral_v<Number> || std::is_enum_v<Number>
  void add(Number& number) {
    writers.push_back([&number](int64_t value) { number = static_cast<Number>(value); });
  }
  template <class Of>
  void add(Id<Of>& id) {
    writers.push_back([&id](int64_t value) { id = value; });
  }
  void add(program::OutputSet& set) {
    writers.push_back(
        [&set](int64_t value) { set = program::OutputSet::of_bits(static_cast<uint32_t>(value)); });
  }
  void add(graph::TensorType& type) {
    add(type.top_k);
    add(type.encoding.block);
    for (graph::Dim& dim : type.dims) {
      writers.push_back([&dim](int64_t value) { dim = value; });
    }
  }
  void add(program::Symbol& symbol) {
    add(symbol.bound);
    add(symbol.expected);
    add(symbol.divisor);
  }
  void add(program::Layout& layout) {
    // Axes that no program here has more than: nobody reads the places behind them.
    constexpr size_t kAxes = 4;
    for (size_t axis = 0; axis < kAxes; ++axis) {
      add(layout.on[axis].code);
      add(layout.outside[axis]);
    }
    for (graph::GivenSizes& given : layout.given) {
      add(given.dim);
      add(given.sizes);
    }
  }
  void add(program::Box& box) {
    for (program::Interval& on : box.on) {
      add(on.begin);
      add(on.count);
    }
  }
  void add(program::Mesh& mesh) {
    for (graph::Axis& axis : mesh.axes) {
      add(axis.size);
    }
  }
  void add(program::Begin& begin) {
    add(begin.begin);
    add(begin.by);
  }
  void add(program::PartDep& dep) {
    add(dep.own);
    add(dep.task);
    add(dep.part);
  }
  void add(program::Slot& slot) {
    add(slot.layout);
    add(slot.begin);
  }
  template <class Item>
  void add(std::vector<Item>& list) {
    for (Item& item : list) {
      add(item);
    }
  }
  // What holds no integer.
  void add(double&) {}
  void add(std::string&) {}
  void add(program::Attrs&) {}
  void add(program::KindIndex&) {}
};

TEST(Fuzz, CorruptProgramsGetAVerdict) {
  std::mt19937_64 rng(5);
  constexpr int64_t kValues[] = {
      -1,  0,   1,       2,         3,         -2,        7,         64,
      255, 256, 1 << 20, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t{1} << 32};
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    test::Case c = test::random_case(rng);
    Integers integers;
    integers.add(c.program);
    const auto& writers = integers.writers;
    for (int k = 0; k < 1 + i % 3; ++k) {
      writers[rng() % writers.size()](kValues[rng() % std::size(kValues)]);
    }
    refused += !check(c.program, c.graph).ok();
  }
  EXPECT_GT(refused, 250);
}

}  // namespace
}  // namespace hocket::check
