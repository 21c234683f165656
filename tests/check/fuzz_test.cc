// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Corrupt programs, with any integer replaced, get a verdict and never crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>

#include "check/check.h"
#include "tests/check/check_util.h"
#include "tests/compare_util.h"

namespace hocket::check {
namespace {

/// Collects every integer of a program, to overwrite it. Of layouts, collects only places of
/// existing axes, since no code reads the others.
class Integers {
 public:
  explicit Integers(program::Program& program) {
    for (const program::Role& role : program.roles) {
      axes_ = std::max(axes_, role.mesh.axes.size());
    }
    add(program);
  }
  std::vector<std::function<void(int64_t)>> writers;

 private:
  template <program::HasFields Struct>
  void add(Struct& object) {
    program::for_each_field<Struct>(
        [&](const program::Field&, auto member) { add(object.*member); });
  }
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
    for (size_t axis = 0; axis < axes_; ++axis) {
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
  void add(program::PieceOffset& begin) {
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
  // Fields without integers.
  void add(double&) {}
  void add(std::string&) {}
  void add(program::Attrs&) {}
  void add(program::KindIndex&) {}

  size_t axes_ = 0;
};

/// HOCKET_CASES=20000 HOCKET_SEED=S: number of corrupt programs, and their seed.
TEST(Fuzz, CorruptProgramsGetAVerdict) {
  const auto cases =
      static_cast<int>(hocket::test::from_environment("HOCKET_CASES", hocket::test::fewer(400)));
  std::mt19937_64 rng(hocket::test::from_environment("HOCKET_SEED", 5));
  constexpr int64_t kValues[] = {
      -1,  0,   1,       2,         3,         -2,        7,         64,
      255, 256, 1 << 20, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t{1} << 32};
  int refused = 0;
  for (int i = 0; i < cases; ++i) {
    test::Case c = test::random_case(rng);
    const std::vector<std::function<void(int64_t)>> writers = Integers(c.program).writers;
    for (int k = 0; k < 1 + i % 3; ++k) {
      writers[rng() % writers.size()](kValues[rng() % std::size(kValues)]);
    }
    refused += !check(c.program, c.graph).ok();
  }
  std::cout << refused << " of " << cases << " refused\n";
  EXPECT_GT(refused, cases * 7 / 10);  // the rest changed values without effect
}

}  // namespace
}  // namespace hocket::check
