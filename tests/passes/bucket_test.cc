// SPDX-License-Identifier: Apache-2.0
// The bucket pass: gradients are reduced together up to the size asked for, each once, before
// anything reads them.
#include <gtest/gtest.h>

#include <algorithm>

#include <map>
#include <set>

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
      // Without its last gradient a bucket was not yet full.
      EXPECT_LT(bytes - types.back().bytes(), limit);
      full[t->group] += bytes >= limit;
      merged += types.size() > 1;
    }
    EXPECT_GE(full.begin()->second, 1) << "no bucket of " << limit << " is full";
  }
  EXPECT_GT(merged, 10);
}

TEST(Bucket, OneForAllIfItIsLarge) {
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

}  // namespace
}  // namespace hocket::passes
