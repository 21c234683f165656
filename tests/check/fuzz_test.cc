// SPDX-License-Identifier: Apache-2.0
// A corrupt program (any integer anywhere replaced) gives a verdict, never a crash.
#include <gtest/gtest.h>

#include <functional>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::check {
namespace {

using Writers = std::vector<std::function<void(int64_t)>>;

/// Every integer of a program, as something to overwrite.
Writers fields(program::Program& p) {
  Writers w;
  auto add = [&](auto& field) {
    w.push_back(
        [&field](int64_t v) { field = static_cast<std::remove_reference_t<decltype(field)>>(v); });
  };
  for (auto& a : p.mesh.axes) add(a.size);
  add(p.num_micro_batches);
  for (auto& k : p.kinds) {
    add(k.workspace);
    for (auto* list : {&k.in, &k.out})
      for (auto& t : *list) {
        add(t.top_k);
        for (auto& d : t.dims) add(d);
      }
  }
  for (auto& g : p.groups)
    for (auto* list : {&g.axes, &g.members})
      for (auto& x : *list) add(x);
  for (auto& c : p.classes) {
    add(c.stage);
    add(c.arena_bytes);
    for (auto& x : c.task_workspace) add(x);
    for (auto& t : c.tasks) {
      add(t.kind), add(t.lane), add(t.accumulate), add(t.group), add(t.peer_axis), add(t.peer);
      add(t.tag), add(t.phase), add(t.micro_batch), add(t.layer);
      for (auto* list : {&t.in, &t.out, &t.deps})
        for (auto& x : *list) add(x);
    }
    for (auto& b : c.buffers) {
      add(b.offset), add(b.expected_bytes), add(b.micro_batch), add(b.type.top_k);
      for (auto& d : b.type.dims) add(d);
      for (auto& l : b.layout.on) add(l.code);
    }
  }
  return w;
}

TEST(Fuzz, CorruptProgramsGetAVerdict) {
  std::mt19937_64 rng(5);
  constexpr int64_t kValues[] = {
      -1,  0,   1,       2,         3,         -2,        7,         64,
      255, 256, 1 << 20, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t{1} << 32};
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    test::Case c = test::random_case(rng);
    const Writers w = fields(c.program);
    for (int k = 0; k < 1 + i % 3; ++k) w[rng() % w.size()](kValues[rng() % std::size(kValues)]);
    refused += !check(c.program, c.graph).ok();
  }
  EXPECT_GT(refused, 250);
}

}  // namespace
}  // namespace hocket::check
