// SPDX-License-Identifier: Apache-2.0
// The bucket pass: gradients are reduced together up to the size asked for, each once, before
// anything reads them; sharded parameters are gathered, and their gradients scattered, together.
#include <gtest/gtest.h>

#include <algorithm>

#include <map>
#include <set>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::passes {
namespace {

using program::Program;
using program::Task;

/// The steps of a model on four ranks with buckets of this size.
check::test::Case lowered(int64_t bucket_bytes) {
  parallel::Plan plan;
  plan.dp = 4;
  plan.ep = 2;
  plan.num_micro_batches = 2;
  return check::test::make_case(check::test::moe(3), plan, 8, bucket_bytes);
}

std::vector<const Task*> reductions(const Program& p) {
  std::vector<const Task*> list;
  for (const Task& t : p.classes[0].tasks) {
    if (p.kind(t).op == "all_reduce" && t.phase == program::Phase::grad &&
        p.kind(t).in[0].numel() > 1) {
      list.push_back(&t);
    }
  }
  return list;
}

/// Reduced buffers, with the group that each is reduced over.
std::multiset<std::pair<program::BufferId, program::GroupId>> reduced(const Program& p) {
  std::multiset<std::pair<program::BufferId, program::GroupId>> list;
  for (const Task* t : reductions(p)) {
    for (program::BufferId b : t->in) {
      list.insert({b, t->group});
    }
  }
  return list;
}

TEST(Bucket, SizeIsKept) {
  const check::test::Case single = lowered(0);
  for (const Task* t : reductions(single.program)) {
    EXPECT_EQ(t->in.size(), 1u);
  }
  int merged = 0;
  for (int64_t limit : {2048, 6000, 16384}) {
    const check::test::Case c = lowered(limit);
    EXPECT_EQ(reduced(c.program), reduced(single.program)) << limit;
    std::map<program::GroupId, int> full;
    for (const Task* t : reductions(c.program)) {
      const auto& types = c.program.kind(*t).in;
      int64_t bytes = 0;
      for (const auto& type : types) {
        bytes += type.bytes();
      }
      EXPECT_EQ(bytes, c.program.kind(*t).bytes);
      // Only a gradient that alone is more makes a bucket larger.
      EXPECT_TRUE(bytes <= limit || types.size() == 1) << bytes;
      full[t->group] += 2 * bytes >= limit;
      merged += types.size() > 1;
    }
    EXPECT_GE(full.begin()->second, 1) << "all buckets of " << limit << " are half empty";
  }
  EXPECT_GT(merged, 10);
}

TEST(Bucket, ALargeBucketTakesAllGradientsOfAGroup) {
  const check::test::Case c = lowered(int64_t{1} << 30);
  std::map<program::GroupId, int> buckets;
  for (const Task* t : reductions(c.program)) {
    ++buckets[t->group];
  }
  EXPECT_EQ(buckets.size(), 2u);  // gradients of the experts over edp, all others over edp and ep
  for (const auto& [group, count] : buckets) {
    EXPECT_EQ(count, 1) << "group " << group;
  }
}

/// Collectives of a kind on the first class, and the operands that they have together.
std::pair<int, int> of_kind(const Program& p, const char* op) {
  std::pair<int, int> found;
  for (const Task& task : p.classes[0].tasks) {
    if (p.kind(task).op == op) {
      ++found.first;
      found.second += static_cast<int>(task.in.size());
    }
  }
  return found;
}

/// A gather waits for the compute task before it in the list, so that its memory is not taken
/// earlier.
TEST(Bucket, GathersOfShardedParametersWaitForTheComputeTaskBeforeThem) {
  parallel::Plan plan;
  plan.dp = 2;
  plan.shard.params = plan.shard.grads = parallel::Shard::all;
  for (const int64_t bucket_bytes : {int64_t{0}, int64_t{1} << 30}) {
    const check::test::Case c =
        check::test::make_case(check::test::dense(2, false), plan, 8, bucket_bytes);
    program::TaskId last = program::kNone;
    std::map<program::Lane, program::TaskId> awaited;  // the last compute task, by lane
    int waiting = 0;
    for (program::TaskId id = 0; id < c.program.classes[0].tasks.size(); ++id) {
      const Task& task = c.program.classes[0].tasks[id];
      if (std::count(task.deps.begin(), task.deps.end(), last) > 0) {
        awaited[task.lane] = last;
      }
      if (task.lane == program::Lane::compute) {
        last = id;
      } else if (c.program.kind(task).op == "all_gather" && last != program::kNone) {
        EXPECT_EQ(awaited[task.lane], last) << "task " << id;
        ++waiting;
      }
    }
    EXPECT_GT(waiting, 2);
  }
}

// So do those that the ranks do not divide, of whatever sizes, apart from those that they do: in
// one order on ranks that have more and on ranks that have less.
TEST(Bucket, SharedOutParametersOfALayerComeTogether) {
  const auto sharded = [](int64_t bucket_bytes) {
    parallel::Plan plan;
    plan.dp = 5;
    plan.shard.params = plan.shard.grads = parallel::Shard::all;
    return check::test::make_case(check::test::dense(2, false), plan, 10, bucket_bytes);
  };
  const check::test::Case single = sharded(0);
  const check::test::Case merged = sharded(int64_t{1} << 30);
  EXPECT_GT(merged.program.classes.size(), 1);
  const auto [gathers, gathered] = of_kind(single.program, "all_gather");
  EXPECT_EQ(gathers, gathered);
  EXPECT_EQ(of_kind(merged.program, "all_gather").second, gathered);
  EXPECT_LT(of_kind(merged.program, "all_gather").first, gathers / 2);
  int lists = 0;  // of operands of several sizes
  for (const Task& task : merged.program.classes[0].tasks) {
    lists += merged.program.kind(task).attrs.has("sizes") ? 1 : 0;
  }
  EXPECT_GE(lists, 2);
  for (const check::test::Case* c : {&single, &merged}) {
    const check::Verdict verdict = check::check(c->program, c->graph);
    EXPECT_TRUE(verdict.ok()) << to_text(verdict);
  }
}

// No compute hides the last all-reduce: a bucket holds at most half of the remaining bytes, from 1
// MiB on.
TEST(Bucket, TheLastOnesAreSmall) {
  models::ModelConfig wide = check::test::dense(2, false);
  wide.hidden_size = 512;
  wide.intermediate_size = 512;
  parallel::Plan plan;
  plan.dp = 2;
  const check::test::Case c = check::test::make_case(wide, plan, 4096, int64_t{1} << 30);
  const std::vector<const Task*> buckets = reductions(c.program);
  ASSERT_GE(buckets.size(), 3u);
  int64_t to_come = 0;
  for (const Task* bucket : buckets) {
    to_come += c.program.kind(*bucket).bytes;
  }
  for (const Task* bucket : buckets) {
    const int64_t bytes = c.program.kind(*bucket).bytes;
    if (bucket->in.size() > 1) {
      EXPECT_LE(bytes, std::max(to_come / 2, int64_t{1} << 20));
    }
    to_come -= bytes;
  }
  EXPECT_TRUE(check::check(c.program, c.graph).ok());
}

// The same tensors cross the links as without buckets, in fewer messages. The parameters of a layer
// are gathered at once, and never with another layer's (each would wait for both).
TEST(Bucket, ShardedParametersOfALayerComeTogether) {
  const auto sharded = [](int64_t bucket_bytes) {
    parallel::Plan plan;
    plan.dp = 2;
    plan.shard.params = plan.shard.grads = parallel::Shard::all;
    return check::test::make_case(check::test::dense(2, false), plan, 8, bucket_bytes);
  };
  const check::test::Case single = sharded(0);
  const check::test::Case merged = sharded(int64_t{1} << 30);
  const auto [gathers, gathered] = of_kind(single.program, "all_gather");
  const auto [scatters, scattered] = of_kind(single.program, "reduce_scatter");
  EXPECT_EQ(gathers, gathered);
  EXPECT_EQ(scatters, scattered);
  EXPECT_EQ(of_kind(merged.program, "all_gather").second, gathered);
  EXPECT_EQ(of_kind(merged.program, "reduce_scatter").second, scattered);
  // Once per pass and part: the embedding, two layers and the head, which stays between its two.
  EXPECT_GE(of_kind(merged.program, "all_gather").first, 5);
  EXPECT_LE(of_kind(merged.program, "all_gather").first, 8);
  EXPECT_LT(of_kind(merged.program, "reduce_scatter").first, scatters / 2);
  EXPECT_TRUE(check::check(merged.program, merged.graph).ok());
}

}  // namespace
}  // namespace hocket::passes
