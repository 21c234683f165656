// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Correct programs are proved, whatever their labels. The text form of a program gets the same
// verdict.
#include "check/check.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "program/finalize.h"
#include "tests/check/check_util.h"

namespace hocket::check {
namespace {

test::Case pipeline(bool tied) {
  parallel::Plan plan;
  plan.pp = 2;
  plan.dp = 2;
  plan.num_micro_batches = 3;
  return test::make_case(test::dense(3, tied), plan);
}

test::Case experts() {
  parallel::Plan plan;
  plan.dp = 4;
  plan.ep = 2;
  plan.num_micro_batches = 2;
  return test::make_case(test::moe(2), plan);
}

TEST(Check, GoodProgramsAreProved) {
  std::mt19937_64 rng(7);
  const char* number = std::getenv("HOCKET_CASES");
  for (int i = 0, n = number ? std::atoi(number) : 60; i < n; ++i) {
    test::Case c = test::random_case(rng);
    Verdict v = check(c.program, c.graph);
    ASSERT_TRUE(v.ok()) << "case " << i << ", " << c.name << "\n" << to_text(v);
    EXPECT_EQ(v.proved.size(), 7u);
  }
}

TEST(Check, ProgramsOfEveryPurposeAreProved) {
  using test::Purpose;
  for (Purpose purpose : {Purpose::loss, Purpose::grads, Purpose::logits, Purpose::generate}) {
    for (int experts = 0; experts < 2; ++experts) {
      for (int64_t pp = 1; pp <= 2; ++pp) {
        parallel::Plan plan;
        if (purpose != Purpose::generate) {
          plan.pp = pp;
          plan.dp = 2;
          plan.ep = experts ? 2 : 1;
          plan.num_micro_batches = 2;
        }
        test::Case c =
            test::make_case(experts ? test::moe(2) : test::dense(2, true), plan, 8, 0, purpose);
        const Verdict v = check(c.program, c.graph);
        EXPECT_TRUE(v.ok()) << static_cast<int>(purpose) << " " << c.name << "\n" << to_text(v);
      }
    }
  }
}

TEST(Check, LabelsDoNotChangeTheVerdict) {
  for (test::Case c : {pipeline(true), experts()}) {
    for (uint64_t seed = 0; seed < 2; ++seed) {
      if (seed) {
        c.program.classes[0].tasks[20].in[0] = c.program.classes[0].tasks[3].in[0];
      }
      Verdict with = check(c.program, c.graph);
      program::Program bare = c.program;
      for (program::RankClass& cls : bare.classes) {
        for (program::Task& t : cls.tasks) {
          t.origin = program::kNone;
        }
        for (program::Buffer& b : cls.buffers) {
          b.logical = program::kNone;
          if (b.kind == program::BufferKind::step) {
            b.layout = {};
          }
        }
      }
      Verdict without = check(bare, c.graph);
      with.seconds = without.seconds = 0;
      EXPECT_EQ(to_json(with), to_json(without));
      EXPECT_EQ(with.ok(), seed == 0);
      // Coordinates only affect words.
      for (program::RankClass& cls : bare.classes) {
        for (program::Task& t : cls.tasks) {
          t.micro_batch = t.layer = program::kNone;
          t.phase = program::Phase::forward;
          t.recompute = false;
        }
      }
      EXPECT_EQ(check(bare, c.graph).num_problems, with.num_problems);
    }
  }
}

TEST(Check, TextFormGivesTheSameVerdict) {
  for (test::Case& c : std::vector<test::Case>{pipeline(true), experts()}) {
    program::Program again = program::parse_program(program::print(c.program));
    Verdict a = check(c.program, c.graph), b = check(again, c.graph);
    a.seconds = b.seconds = 0;
    EXPECT_TRUE(a.ok()) << to_text(a);
    EXPECT_EQ(to_json(a), to_json(b));
  }
}

TEST(Check, CertificateIsValidJson) {
  test::Case c = pipeline(false);
  auto j = nlohmann::json::parse(to_json(check(c.program, c.graph)));
  EXPECT_TRUE(j["ok"]);
  EXPECT_EQ(j["program_hash"].get<std::string>().size(), 32u);
  EXPECT_EQ(j["memory"].size(), 2u);
  EXPECT_GT(j["proved"].size(), 0u);
  EXPECT_GT(j["assumptions"].size(), 0u);
  EXPECT_GT(j["outside"].size(), 0u);
  c.program.classes[0].tasks[5].accumulate = {0};
  auto k = nlohmann::json::parse(to_json(check(c.program, c.graph)));
  EXPECT_FALSE(k["ok"]);
  EXPECT_NE(k["program_hash"], j["program_hash"]);
  EXPECT_EQ(k["proved"].size(), 0u);
}

TEST(Check, CertificateBindsProgramGraphAndMesh) {
  const test::Case c = pipeline(false);
  const Verdict v = check(c.program, c.graph);
  const nlohmann::json json = nlohmann::json::parse(to_json(v));
  const Certificate read = parse_certificate(JsonView(json, "certificate"));
  EXPECT_EQ(read, v.certificate);
  EXPECT_EQ(differences(read, v.certificate), "");
  EXPECT_EQ(read.ranks, "pp 2 x edp 2 x ep 1");
  // The form in which a checkpoint stores it.
  const nlohmann::json state = {{"step", 3}, {"data", json}};
  EXPECT_EQ(parse_certificate(JsonView(state, "run.json")), read);

  const auto only = [&](const Verdict& other, const char* what) {
    const std::string text = differences(v.certificate, other.certificate);
    for (const char* each : {"program", "reference graph", "mesh"}) {
      EXPECT_EQ(text.find(std::string("the ") + each) != text.npos, each == std::string(what))
          << text;
    }
  };
  // A program with another kernel time has another hash.
  program::Program dearer = c.program;
  dearer.kinds[0].bytes += 64;
  only(check(dearer, c.graph), "program");
  // The same program against a step with another attribute, or with more micro-batches.
  graph::Graph other = c.graph;
  other.nodes[1].attrs.set("eps", 0.5);
  only(check(c.program, other), "reference graph");
  Checker twice(c.graph, 4);
  only(twice.check(c.program), "reference graph");
  std::vector<program::Role> roles = c.program.roles;
  roles[0].mesh.axes[1].size = 4;
  EXPECT_NE(mesh_hash(roles), mesh_hash(c.program.roles));
  roles = {c.program.roles[0], c.program.roles[0]};
  EXPECT_NE(mesh_hash(roles), mesh_hash(c.program.roles));
  EXPECT_EQ(check_structure(c.program).certificate.reference, Hash128{});

  for (const char* bad : {R"({})", R"({"program_hash": 3})", R"([])",
                          R"({"program_hash": "00", "reference_hash": "", "mesh_hash": ""})"}) {
    const nlohmann::json document = nlohmann::json::parse(bad);
    EXPECT_THROW(parse_certificate(JsonView(document, "bad")), Error) << bad;
  }
}

TEST(Check, StructureIsCheckedWithoutAGraph) {
  test::Case c = pipeline(true);
  Verdict v = check_structure(c.program);
  EXPECT_TRUE(v.ok()) << to_text(v);
  EXPECT_EQ(v.num_applications, 0);
}

TEST(Check, OneCheckerChecksManyPrograms) {
  test::Case c = pipeline(true);
  Checker checker(c.graph, 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(checker.check(c.program).ok());
  }
  program::Program bad = c.program;
  bad.classes[1].tasks.pop_back();
  EXPECT_FALSE(checker.check(bad).ok());
  EXPECT_TRUE(checker.check(c.program).ok());
}

CheckOptions budget(int64_t bytes) {
  CheckOptions options;
  options.memory_budget = bytes;
  return options;
}

TEST(Check, BudgetRefusalNamesLargestBuffersAndASetting) {
  test::Case c = pipeline(false);
  Verdict v = check(c.program, c.graph);
  ASSERT_TRUE(v.ok());
  int64_t peak = 0;
  for (const ClassMemory& m : v.memory) {
    peak = std::max(peak, m.planned.total());
  }
  EXPECT_TRUE(check(c.program, c.graph, budget(peak)).ok());
  v = check(c.program, c.graph, budget(peak - 1));
  ASSERT_EQ(v.num_problems, 1);
  EXPECT_EQ(v.problems[0].rule, "memory-budget");
  EXPECT_NE(v.problems[0].text.find("written by"), std::string::npos) << v.problems[0].text;
  EXPECT_NE(v.problems[0].fix.find("plan."), std::string::npos);
}

/// Returns the program of `c` that sends its loss, equal on all ranks, to the next rank of an axis.
program::Program with_a_ring(const test::Case& c, const std::string& axis, int32_t offset) {
  program::Program p = c.program;
  for (program::RankClass& cls : p.classes) {
    int32_t loss = 0;
    while (cls.buffers[loss].kind != program::BufferKind::output) {
      ++loss;
    }
    const graph::TensorType type = cls.buffers[loss].type;
    program::Task send, recv;
    send.kind = p.intern(program::communication_kind(comm::Id::send, {}, {type}, {}));
    recv.kind = p.intern(program::communication_kind(comm::Id::recv, {}, {}, {type}));
    send.lane = program::Lane::intra_tx;
    recv.lane = program::Lane::intra_rx;
    send.phase = recv.phase = program::Phase::optimizer;
    send.peer_axis = recv.peer_axis = p.roles[0].mesh.axis(axis);
    send.tag = recv.tag = 1 << 20;
    send.peer = offset;
    recv.peer = -offset;
    send.in = {loss};
    recv.out = {static_cast<int32_t>(cls.buffers.size())};
    cls.buffers.emplace_back().type = type;
    cls.tasks.push_back(send);
    cls.tasks.push_back(recv);
  }
  program::finalize(p);
  return p;
}

TEST(Check, RingMessagesAreAccepted) {
  parallel::Plan plan;
  plan.dp = 4;
  const test::Case c = test::make_case(test::dense(2, false), plan);
  for (int32_t offset : {1, -1, 2, 3, -3}) {
    const Verdict v = check(with_a_ring(c, "edp", offset), c.graph);
    EXPECT_TRUE(v.ok()) << to_text(v);
    EXPECT_EQ(v.num_messages, 1);
  }
  for (int32_t offset : {0, 4, -4, 5}) {
    const Verdict v = check(with_a_ring(c, "edp", offset), c.graph);
    ASSERT_FALSE(v.ok()) << "offset " << offset;
    EXPECT_EQ(v.problems[0].rule, "peer-exists");
  }
}

/// Checks a ring with a message that goes to the rank at offset `peer` + `there`. The message comes
/// from the rank at offset `peer` + `back`; `there` and `back` are tables by coordinate.
Verdict check_exchange(const test::Case& c, int32_t peer, std::vector<int64_t> there,
                       std::vector<int64_t> back) {
  program::Program p = with_a_ring(c, "edp", 1);
  const int32_t axis = p.roles[0].mesh.axis("edp");
  std::vector<program::Task>& tasks = p.classes[0].tasks;
  program::Task& send = tasks[tasks.size() - 2];
  program::Task& recv = tasks.back();
  send.peer = recv.peer = peer;
  send.peer_by = p.intern({0, {axis}, std::move(there)});
  recv.peer_by = p.intern({0, {axis}, std::move(back)});
  return check(p, c.graph);
}

TEST(Check, PermutationMessagesAreAccepted) {
  // Pairs of neighbours, pairs at distance two, and a ring in another order than that of the ranks.
  parallel::Plan plan;
  plan.dp = 4;
  const test::Case c = test::make_case(test::dense(2, false), plan);
  for (const Verdict& v : {check_exchange(c, 0, {1, -1, 1, -1}, {1, -1, 1, -1}),
                           check_exchange(c, 2, {0, 0, -4, -4}, {-4, 0, 0, -4}),
                           check_exchange(c, 1, {0, 1, -3, -2}, {1, -2, 0, -3})}) {
    EXPECT_TRUE(v.ok()) << to_text(v);
    EXPECT_EQ(v.num_messages, 1);
  }
  const auto expect_refused = [&](const Verdict& v, const char* rule, const char* text) {
    ASSERT_FALSE(v.ok());
    EXPECT_EQ(v.problems[0].rule, rule) << to_text(v);
    EXPECT_NE(v.problems[0].text.find(text), std::string::npos) << v.problems[0].text;
  };
  expect_refused(check_exchange(c, 0, {1, -1, 1, -1}, {2, 2, -2, -2}), "send-unmatched",
                 "has no matching recv");
  expect_refused(check_exchange(c, 0, {1, 1, 1, -2}, {1, -1, 1, -1}), "peer-exists",
                 "has a table by which ranks 0 and 3 have one peer, rank 1");
  expect_refused(check_exchange(c, 1, {0, -2, 0, -1}, {0, -2, 0, -2}), "peer-exists",
                 "has a peer at offset 1 and -1 of its table, on an axis of 4");
  expect_refused(check_exchange(c, 1, {0, -2, INT64_MAX, -2}, {0, -2, 0, -2}), "table-fits",
                 "has the number 9223372036854775807");
  // A table that equals an offset.
  program::Program p = with_a_ring(c, "edp", 1);
  program::Task& recv = p.classes[0].tasks.back();
  recv.peer = 2;
  recv.peer_by = p.intern({0, {recv.peer_axis}, {1, -3, -3, -3}});
  const Verdict v = check(p, c.graph);
  EXPECT_TRUE(v.ok()) << to_text(v);
}

TEST(Check, AnotherGraphIsRefused) {
  test::Case c = pipeline(false);
  // Attributes of nodes matter: the graph has another eps.
  graph::Graph other = c.graph;
  for (graph::Node& n : other.nodes) {
    if (n.op == "rms_norm" && n.layer == 1) {
      n.attrs.set("eps", n.attrs.f("eps") * 2);
      break;
    }
  }
  Verdict v = check(c.program, other);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.problems[0].rule, "not-in-graph");
  EXPECT_NE(v.problems[0].text.find("rms_norm L1"), std::string::npos) << v.problems[0].text;
  EXPECT_NE(v.problems[0].text.find("attributes are"), std::string::npos) << v.problems[0].text;
}

}  // namespace
}  // namespace hocket::check
