// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Certified memory against brute force: counts the pages of every buffer at its planned offset, and
// follows every message through all events that must precede its send.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <tuple>
#include <utility>

#include "check/check.h"
#include "program/memory.h"
#include "run/compile.h"
#include "tests/check/check_util.h"

namespace hocket::check {
namespace {

using program::BufferKind;
using program::kNone;
using program::kPageBytes;
using program::Program;
using program::RankClass;
using program::Task;

/// Returns the bytes of the 4 KiB pages that a class's step buffers and workspaces touch. A ragged
/// buffer has its expected size.
int64_t laid_out(const Program& p, const RankClass& cls) {
  std::vector<int32_t> change(static_cast<size_t>(cls.arena_bytes / kPageBytes + 2), 0);
  auto lay = [&](int64_t begin, int64_t bytes) {
    EXPECT_GE(begin, 0);
    EXPECT_LE(begin + bytes, cls.arena_bytes);
    ++change[begin / kPageBytes];
    --change[(begin + bytes - 1) / kPageBytes + 1];
  };
  for (const program::Buffer& b : cls.buffers) {
    if (b.kind != BufferKind::step || b.offset == kNone) continue;
    lay(b.offset, b.expected_bytes == kNone ? b.type.bytes() : b.expected_bytes);
  }
  for (const Task& t : cls.tasks) {
    if (const int64_t bytes = p.kind(t).workspace; bytes > 0) {
      lay(t.workspace, bytes);
    }
  }
  int64_t pages = 0, over = 0;
  for (int32_t c : change) {
    over += c;
    pages += over > 0;
  }
  return pages * kPageBytes;
}

int64_t named_pages(const RankClass& cls, bool persistent) {
  int64_t pages = 0;
  for (const program::Buffer& b : cls.buffers) {
    if (b.kind == BufferKind::view) continue;  // memory of its base
    if (b.kind != BufferKind::step && (b.kind == BufferKind::persistent) == persistent) {
      pages += (b.type.bytes() + kPageBytes - 1) / kPageBytes;
    }
  }
  return pages * kPageBytes;
}

void expect_laid_out(const Program& p, const Verdict& v, const std::string& name) {
  ASSERT_TRUE(v.ok()) << name << "\n" << to_text(v);
  ASSERT_EQ(v.memory.size(), p.classes.size());
  for (size_t c = 0; c < p.classes.size(); ++c) {
    const program::Memory& m = v.memory[c].planned;
    EXPECT_EQ(m.step_buffers, laid_out(p, p.classes[c])) << name << " class " << c;
    EXPECT_EQ(m.persistent, named_pages(p.classes[c], true)) << name << " class " << c;
    EXPECT_EQ(m.inputs_outputs, named_pages(p.classes[c], false)) << name << " class " << c;
    EXPECT_EQ(m.reserved, p.classes[c].arena_bytes);
    EXPECT_EQ(m.total(), m.step_buffers + m.persistent + m.inputs_outputs + m.messages);
  }
}

TEST(CheckMemory, CertifiedPagesEqualBruteForce) {
  std::mt19937_64 rng(7);
  for (int i = 0; i < 60; ++i) {
    const test::Case c = test::random_case(rng);
    expect_laid_out(c.program, check(c.program, c.graph), c.name);
  }
}

/// The shipped plan of a 30B model on 512 ranks keeps the budget in its header: 80 GiB per rank.
TEST(CheckMemory, ShippedPlanOf512RanksFitsItsBudget) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const std::string folder = std::string(root ? root : ".") + "/configs/";
  const engine::Compiled c = engine::compile(engine::read_run(
      folder + "qwen3-30b-a3b.yaml", {"model.path=" + folder + "models/qwen3-30b-a3b"}));
  CheckOptions options;
  options.memory_budget = int64_t{80} << 30;
  const Verdict v = check(c.program, c.reference, options);
  expect_laid_out(c.program, v, "qwen3-30b-a3b");
  EXPECT_NEAR(v.ragged_factor, 1.25, 0.001);
  for (const ClassMemory& m : v.memory) {
    std::cout << "class " << m.cls << ": " << program::parts_text(m.planned) << "\n";
  }
}

// ---- messages -----------------------------------------------------------------------------------

/// Tasks of all ranks of a pipeline with one rank per stage. Computes for each task the tasks that
/// must have ended before it starts, by lane, dependency and message.
class Order {
 public:
  explicit Order(const Program& p) : p_(p) {
    for (size_t c = 0; c < p.classes.size(); ++c) {
      first_.push_back(static_cast<int32_t>(tasks_.size()));
      for (const Task& t : p.classes[c].tasks) {
        tasks_.push_back(&t), class_.push_back(static_cast<int32_t>(c));
      }
    }
    before_.resize(tasks_.size());
    std::map<std::pair<int32_t, int>, int32_t> last;  // class, lane
    std::map<std::tuple<int32_t, int32_t, int32_t>, std::deque<int32_t>> sent, received;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const Task& t = *tasks_[i];
      const int32_t g = static_cast<int32_t>(i), c = class_[i];
      auto [lane, fresh] = last.try_emplace({c, static_cast<int>(t.lane)}, g);
      if (!fresh) {
        before_[i].push_back(std::exchange(lane->second, g));
      }
      for (program::TaskId d : t.deps) {
        before_[i].push_back(first_[c] + d);
      }
      if (op(g) == "send") {
        sent[{c, c + t.peer, t.tag}].push_back(g);
      }
      if (op(g) == "recv") {
        received[{c + t.peer, c, t.tag}].push_back(g);
      }
    }
    for (auto& [channel, list] : sent) {
      for (size_t k = 0; k < list.size(); ++k) {
        const int32_t r = received.at(channel).at(k);
        receive_[list[k]] = r;
        before_[r].push_back(list[k]);
      }
    }
  }
  std::string op(int32_t task) const { return p_.kind(*tasks_[task]).op; }

  /// Returns the most bytes of a class's messages in flight: at each send, only events that must
  /// have happened have happened.
  int64_t most_held(int32_t cls) const {
    int64_t most = 0;
    for (auto [send, recv] : receive_) {
      if (class_[send] != cls) continue;
      std::vector<uint8_t> done(tasks_.size(), 0);
      std::vector<int32_t> open{send};
      while (!open.empty()) {
        const int32_t t = open.back();
        open.pop_back();
        if (std::exchange(done[t], 1)) continue;
        open.insert(open.end(), before_[t].begin(), before_[t].end());
      }
      int64_t held = 0;
      for (auto [s, r] : receive_) {
        if (class_[s] == cls && done[s] && !done[r]) {
          held += p_.kind(*tasks_[s]).in[0].bytes();
        }
      }
      most = std::max(most, held);
    }
    return most;
  }

 private:
  const Program& p_;
  std::vector<const Task*> tasks_;
  std::vector<int32_t> class_, first_;
  std::vector<std::vector<int32_t>> before_;
  std::map<int32_t, int32_t> receive_;  // of a send
};

TEST(CheckMemory, MessagesInFlightEqualBruteForce) {
  int exact = 0;
  for (int64_t pp = 2; pp <= 4; ++pp) {
    for (int64_t micro_batches : {1, 2, 5, 8}) {
      for (const char* schedule : {"1f1b", "gpipe"}) {
        parallel::Plan plan;
        plan.pp = pp;
        plan.num_micro_batches = micro_batches;
        plan.pp_schedule = schedule;
        const test::Case c = test::make_case(test::dense(4, false), plan);
        const Order order(c.program);
        const std::vector<program::Memory> memory = program::memory_of(c.program);
        for (int32_t s = 0; s < pp; ++s) {
          const int64_t held = order.most_held(s), bound = memory[s].messages;
          EXPECT_GE(bound, held) << c.name << " class " << s;
          // A first or last stage has one peer, from which it learns all that it can know.
          if (s == 0 || s == pp - 1) {
            EXPECT_EQ(bound, held) << c.name << " class " << s;
          }
          exact += bound == held;
        }
      }
    }
  }
  std::cout << exact << " bounds are reached\n";
}

TEST(CheckMemory, A1F1BPipelineHoldsFewerMessagesThanAllForwardFirst) {
  parallel::Plan plan;
  plan.pp = 2;
  plan.num_micro_batches = 16;
  const auto held = [&](const char* schedule) {
    plan.pp_schedule = schedule;
    const test::Case c = test::make_case(test::dense(2, false), plan);
    return program::memory_of(c.program)[0].messages;
  };
  const int64_t message = 8 * 16 * 4;  // of one micro-batch: tokens x width in f32
  EXPECT_EQ(held("gpipe"), 16 * message);
  EXPECT_LT(held("1f1b"), 5 * message);
}

}  // namespace
}  // namespace hocket::check
