// SPDX-License-Identifier: Apache-2.0
// Faults in the parts of values that tasks take, and in their begins.
#include <gtest/gtest.h>

#include "tests/check/refuse_util.h"
#include "tests/check/rules_util.h"

namespace hocket::check {
namespace {

using program::BufferId;
using program::Task;
using program::TaskId;
using test::Edit;
using test::expect_refused;

/// Inserts a copy of the first task of the op. It is on the first half of the queries of a sequence
/// and the second half of its keys. Those queries need none of them. `keys`: inputs that are keys.
/// Returns the place behind it.
TaskId add_task_on_nothing(Edit& e, const std::string& op, const std::set<size_t>& keys,
                           std::vector<BufferId>* made) {
  const TaskId at = e.find(op);
  const Task whole = e.at(at);
  const graph::Attrs attrs = e.kind(whole).attrs;
  const int64_t half = attrs.i("seq") / 2;
  std::vector<BufferId> in;
  for (size_t i = 0; i < whole.in.size(); ++i) {
    in.push_back(e.add_rows(whole.in[i], keys.contains(i) ? half : 0, half));
  }
  for (const BufferId out : whole.out) {
    graph::TensorType type = e.buffer(out).type;
    type.dims[0] = half;
    made->push_back(e.add_buffer(type));
  }
  Task task = e.make(op, attrs, in, *made);
  task.piece_offsets = {{'s', half}};
  e.insert(at + 1, task);
  return at + 2;
}

TEST(RefuseParts, EmptySoftmaxIsTheIdentityOfItsMergeOnly) {
  // o = 0 and lse = -inf: the identity of the merge, but not of a sum or a maximum.
  for (const char* op : {"softmax_merge", "add", "maximum"}) {
    Edit e(test::one_rank());
    const Task whole = e.task("attention");
    std::vector<BufferId> none;
    const TaskId at = add_task_on_nothing(e, "attention", {1, 2}, &none);
    const int64_t half = e.buffer(none[0]).type.dims[0];
    const BufferId o = e.add_rows(whole.out[0], 0, half);
    const BufferId lse = e.add_rows(whole.out[1], 0, half);
    if (op == std::string("softmax_merge")) {
      e.insert(at, e.make(op, {}, {o, lse, none[0], none[1]}, {o, lse}));
      const Verdict v = e.check();
      EXPECT_TRUE(v.ok()) << to_text(v);
      continue;
    }
    e.insert(at, e.make(op, {}, {lse, none[1]}, {lse}));
    const bool sum = op == std::string("add");
    expect_refused(e.check(), sum ? "layout-legal" : "merge-parts", {op});
  }
}

TEST(RefuseParts, EmptySumIsTheIdentityOfSumsOnly) {
  for (const char* op : {"add", "maximum"}) {
    Edit e(test::one_rank());
    const Task whole = e.task("attention_bwd");
    std::vector<BufferId> none;
    const TaskId at = add_task_on_nothing(e, "attention_bwd", {2, 3}, &none);
    const int64_t half = e.buffer(none[1]).type.dims[0];
    const BufferId dk = e.add_rows(whole.out[1], half, half);
    e.insert(at, e.make(op, {}, {dk, none[1]}, {dk}));
    const Verdict v = e.check();
    if (op == std::string("add")) {
      EXPECT_TRUE(v.ok()) << to_text(v);
    } else {
      expect_refused(v, "merge-parts", {"maximum"});
    }
  }
}

/// Merges attention of the same queries to the first and to the second half of the keys.
TEST(RefuseParts, MergeNeedsOutputsOfOnePart) {
  for (const bool crossed : {false, true}) {
    Edit e(test::one_rank());
    const TaskId at = e.find("attention");
    const Task whole = e.at(at);
    const graph::Attrs attrs = e.kind(whole).attrs;
    const int64_t half = attrs.i("seq") / 2;
    std::vector<BufferId> made[2];
    for (const int64_t part : {0, 1}) {
      for (const BufferId out : whole.out) {
        graph::TensorType type = e.buffer(out).type;
        type.dims[0] = half;
        made[part].push_back(e.add_buffer(type));
      }
      std::vector<BufferId> in;
      for (size_t i = 0; i < whole.in.size(); ++i) {
        const bool is_key = i == 1 || i == 2;
        in.push_back(e.add_rows(whole.in[i], is_key ? part * half : half, half));
      }
      Task task = e.make("attention", attrs, in, made[part]);
      task.piece_offsets = {{'t', half}, {'s', part * half}};
      e.insert(at + 1 + part, task);
    }
    const BufferId first_lse = made[crossed ? 1 : 0][1], second_lse = made[crossed ? 0 : 1][1];
    const BufferId o = e.add_rows(whole.out[0], half, half);
    const BufferId lse = e.add_rows(whole.out[1], half, half);
    e.insert(at + 3, e.make("softmax_merge", {}, {made[0][0], first_lse, made[1][0], second_lse},
                            {o, lse}));
    const Verdict v = e.check();
    if (crossed) {
      expect_refused(v, "merge-parts", {"softmax_merge"});
    } else {
      EXPECT_TRUE(v.ok()) << to_text(v);
    }
  }
}

TEST(RefuseParts, RepeatedBeginOfALetterIsRefused) {
  // Readers of the first and of the last begin would disagree.
  for (const int64_t first : {0, 8}) {
    Edit e(test::one_rank());
    e.task("attention").piece_offsets = {{'t', first, program::kNone},
                                         {'t', 8 - first, program::kNone}};
    expect_refused(e.check(), "begins-named", {"attention", "has two begins of 't'"});
  }
}

TEST(RefuseParts, UnusedBeginIsRefused) {
  Edit e(test::one_rank());
  e.task("rms_norm").piece_offsets = {{'a', 8, program::kNone}};
  expect_refused(e.check(), "begins-named", {"rms_norm", "'a'", "takes no letter by position"});
  e = Edit(test::one_rank());
  e.task("linear").piece_offsets = {{'Z', -99999999, program::kNone}};
  expect_refused(e.check(), "begins-named", {"linear", "'Z'"});
  e = Edit(test::one_rank());
  e.task("embedding").piece_offsets = {{'t', 0, program::kNone}};
  expect_refused(e.check(), "begins-named", {"embedding", "only 'v' by position"});
}

}  // namespace
}  // namespace hocket::check
