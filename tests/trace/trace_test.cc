// SPDX-License-Identifier: Apache-2.0
// Traces: written traces parse to the same, Chrome's required keys are there, damaged files are
// refused with the place named.
#include "trace/trace.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "trace/trace_builder.h"
#include "trace/trace_reader.h"

namespace hocket::trace {
namespace {

using nlohmann::json;

class TraceTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "hocket_trace_test";
    remove_tree(dir_);
    make_dirs(dir_);
  }
  void TearDown() override { remove_tree(dir_); }
  std::string at(const std::string& name) const { return join_path(dir_, name); }
  std::string write(const std::string& name, std::string_view text) const {
    FileWriter file(at(name), FileWriter::Mode::create);
    file.write(text);
    file.close();
    return at(name);
  }
  std::string error_of(const std::string& path) const {
    try {
      read_trace(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "";
  }
  std::string dir_;
};

// Lanes are in-order queues: events of one (rank, lane) follow each other.
Trace random_trace(uint64_t seed, int events) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  Trace trace;
  trace.title = "moe \"tiny\" \\ 2 ranks\n\x01 µ";
  trace.source = "simulation";
  trace.num_ranks = 3;
  trace.steps = {20, 21};
  trace.waits = {{{0, 2}, {{4, 1}, {9, 3, 8}}}, {{1}, {}}};
  trace.set_property("plan", "dp=3 {\"a\": 1}");
  trace.set_property("model", "x");
  trace.set_property("model", "qwen3_moe");
  const std::vector<std::string> kinds = {"linear", "attention", "all_to_all", "na\"me\\\t"};
  std::vector<std::vector<int64_t>> clock(3, std::vector<int64_t>(program::kNumLanes, -5'000'001));
  for (int i = 0; i < events; ++i) {
    TraceEvent e;
    e.rank = static_cast<int32_t>(pick(0, 2));
    e.lane = static_cast<uint16_t>(pick(0, program::kNumLanes - 1));
    int64_t& now = clock[e.rank][e.lane];
    e.start_ns = now += pick(0, 2000);
    e.end_ns = now += pick(0, int64_t{1} << pick(0, 36));
    e.kind = trace.intern(kinds[pick(0, 3)]);
    if (pick(0, 1)) {
      e.name = trace.intern("name " + std::to_string(pick(0, 9)));
    }
    if (pick(0, 3)) {
      e.phase = trace.intern(pick(0, 1) ? "forward" : "backward");
    }
    e.task = static_cast<uint32_t>(pick(0, 4294967295));
    if (pick(0, 1)) {
      e.step = static_cast<int32_t>(pick(20, 21));
    }
    if (pick(0, 1)) {
      e.micro_batch = static_cast<int32_t>(pick(0, 7));
    }
    if (pick(0, 1)) {
      e.stage = static_cast<int32_t>(pick(0, 3));
    }
    if (pick(0, 1)) {
      e.layer = trace.intern("L" + std::to_string(pick(0, 99)));
    }
    if (pick(0, 1)) {
      e.bytes = pick(0, int64_t{1} << 53);
    }
    if (pick(0, 1)) {
      e.flops = pick(0, 1) ? 1e-3 * static_cast<double>(pick(1, 1'000'000)) : 3.5e21;
    }
    if (pick(0, 1)) {
      e.group = static_cast<int32_t>(pick(0, 5));
      e.group_ranks = static_cast<int32_t>(pick(1, 1 << 20));
      e.moves = trace.intern("layers." + std::to_string(pick(0, 9)) + ".\"weight\" and 2 more");
    }
    if (pick(0, 1)) {
      e.waited_ns = pick(1, int64_t{1} << 40);
    }
    if (pick(0, 3) == 0) {
      e.flow = pick(1, int64_t{1} << 53);
      e.flow_end = pick(0, 1) ? FlowEnd::out : FlowEnd::in;
    }
    trace.events.push_back(e);
  }
  for (int i = 0; i < 50; ++i) {
    trace.memory.push_back({pick(0, 1 << 30), pick(0, int64_t{1} << 45),
                            static_cast<int32_t>(pick(0, 2)),
                            pick(0, 1) ? trace.intern("arena") : 0});
  }
  return trace;
}

// String ids depend on the order of appearance; this compares their strings.
void expect_same(const Trace& a, const Trace& b) {
  EXPECT_EQ(a.title, b.title);
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.num_ranks, b.num_ranks);
  EXPECT_EQ(a.lanes, b.lanes);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.properties, b.properties);
  EXPECT_TRUE(a.waits == b.waits);
  ASSERT_EQ(a.events.size(), b.events.size());
  for (size_t i = 0; i < a.events.size(); ++i) {
    TraceEvent x = a.events[i], y = b.events[i];
    ASSERT_EQ(a.text(x.name), b.text(y.name)) << i;
    ASSERT_EQ(a.text(x.kind), b.text(y.kind)) << i;
    ASSERT_EQ(a.text(x.phase), b.text(y.phase)) << i;
    ASSERT_EQ(a.text(x.layer), b.text(y.layer)) << i;
    ASSERT_EQ(a.text(x.moves), b.text(y.moves)) << i;
    x.name = x.kind = x.phase = x.layer = x.moves = 0;
    y.name = y.kind = y.phase = y.layer = y.moves = 0;
    ASSERT_EQ(x, y) << i;
  }
  ASSERT_EQ(a.memory.size(), b.memory.size());
  for (size_t i = 0; i < a.memory.size(); ++i) {
    TraceMemory x = a.memory[i], y = b.memory[i];
    ASSERT_EQ(a.text(x.name), b.text(y.name));
    x.name = y.name = 0;
    ASSERT_EQ(x, y);
  }
}

TEST_F(TraceTest, ReadsBackPlainAndGzipFiles) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Trace trace = random_trace(seed, 2000);
    for (const char* name : {"t.json", "t.json.gz"}) {
      write_trace(trace, at(name));
      expect_same(trace, read_trace(at(name)));
    }
    EXPECT_EQ(read_file(at("t.json.gz")).substr(0, 2), "\x1f\x8b");
    // The gzip stream contains the plain file.
    const gzFile file = gzopen(at("t.json.gz").c_str(), "rb");
    const std::string plain = read_file(at("t.json"));
    std::string text(plain.size() + 10, '\0');
    const int n = gzread(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    ASSERT_EQ(text.substr(0, static_cast<size_t>(std::max(n, 0))), plain);
  }
}

TEST_F(TraceTest, AnEmptyTraceIsReadBack) {
  write_trace(Trace(), at("t.json"));
  expect_same(Trace(), read_trace(at("t.json")));
  EXPECT_TRUE(json::accept(read_file(at("t.json"))));
}

TEST_F(TraceTest, WritesTheKeysThatChromeRequires) {
  Trace trace;
  trace.num_ranks = 2;
  TraceEvent send;
  send.kind = trace.intern("send");
  send.start_ns = 1'000'001;
  send.end_ns = 1'500'000;
  send.lane = static_cast<uint16_t>(program::Lane::intra_tx);
  send.flow = 42;
  send.flow_end = FlowEnd::out;
  send.bytes = 4096;
  TraceEvent recv = send;
  recv.kind = trace.intern("recv");
  recv.rank = 1;
  recv.lane = static_cast<uint16_t>(program::Lane::intra_rx);
  recv.start_ns = 0;
  recv.end_ns = 1'600'000;
  recv.flow_end = FlowEnd::in;
  trace.events = {send, recv};
  trace.memory.push_back({7'250, 1 << 20, 1, 0});
  write_trace(trace, at("t.json"));

  const json document = json::parse(read_file(at("t.json")));
  std::map<std::string, std::vector<json>> by_phase;
  for (const json& e : document.at("traceEvents")) {
    by_phase[e.at("ph")].push_back(e);
  }
  ASSERT_EQ(by_phase["X"].size(), 2u);
  const json& x = by_phase["X"][0];
  EXPECT_EQ(x.at("name"), "send");
  EXPECT_EQ(x.at("cat"), "send");
  EXPECT_DOUBLE_EQ(x.at("ts"), 1000.001);
  EXPECT_DOUBLE_EQ(x.at("dur"), 499.999);
  EXPECT_EQ(x.at("args").at("bytes"), 4096);

  // The arrow starts inside the send and ends inside the receive, not before it started.
  ASSERT_EQ(by_phase["s"].size(), 1u);
  ASSERT_EQ(by_phase["f"].size(), 1u);
  const json &s = by_phase["s"][0], &f = by_phase["f"][0];
  EXPECT_EQ(s.at("id"), f.at("id"));
  EXPECT_EQ(f.at("bp"), "e");
  EXPECT_EQ(s.at("pid"), x.at("pid"));
  EXPECT_EQ(s.at("tid"), x.at("tid"));
  EXPECT_EQ(s.at("ts"), x.at("ts"));
  EXPECT_EQ(f.at("pid"), by_phase["X"][1].at("pid"));
  EXPECT_DOUBLE_EQ(f.at("ts"), 1599.999);
  EXPECT_GE(f.at("ts"), s.at("ts"));

  // Every process and every thread in use has a name; id 0 belongs to Perfetto's idle process.
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  for (const json& m : by_phase["M"]) {
    if (m.at("name") == "process_name") {
      processes[m.at("pid")] = m.at("args").at("name");
    }
    if (m.at("name") == "thread_name") {
      threads[{m.at("pid"), m.at("tid")}] = m.at("args").at("name");
    }
  }
  EXPECT_EQ(processes.size(), 2u);
  EXPECT_EQ(threads.size(), 2u);
  for (const json& e : by_phase["X"]) {
    EXPECT_GT(e.at("pid"), 0);
    EXPECT_GT(e.at("tid"), 0);
    EXPECT_EQ(threads.count({e.at("pid"), e.at("tid")}), 1u);
  }
  EXPECT_EQ(processes.begin()->second, "rank 0");
  ASSERT_EQ(by_phase["C"].size(), 1u);
  EXPECT_DOUBLE_EQ(by_phase["C"][0].at("ts"), 7.25);
  EXPECT_EQ(by_phase["C"][0].at("args").at("bytes"), 1 << 20);
}

TEST_F(TraceTest, ReadsTracesOfOtherTools) {
  const std::string path = write("t.json", R"([
    {"name":"forward","cat":"compute","ph":"X","pid":7,"tid":3,"ts":1e3,"dur":0.0015,
     "args":{"step":5,"mb_id":2,"deep":{"a":[1,{"b":null}]}}, "extra":[true,false,"}]"]},
    {"ph":"i","name":"mark","pid":7,"tid":3,"ts":1},
    {"ph":"X","name":"\u00e9\ud83d\ude00\n","pid":"host","tid":"io","ts":848671.6747283936,"dur":2},
    {"ph":"M","name":"thread_name","pid":"host","tid":"io","args":{"name":"io thread"}},
    {"ph":"M","name":"process_name","pid":7,"args":{"name":"rank 4"}},
  ])");
  ReadTraceReport report;
  const Trace trace = read_trace(path, {}, &report);
  EXPECT_EQ(report.skipped_events, 1);
  EXPECT_FALSE(report.partial);
  ASSERT_EQ(trace.events.size(), 2u);
  const TraceEvent &a = trace.events[0], &b = trace.events[1];
  EXPECT_EQ(a.start_ns, 1'000'000);
  EXPECT_EQ(a.end_ns, 1'000'002);  // 1.5 ns, rounded
  EXPECT_EQ(a.step, 5);
  EXPECT_EQ(a.rank, 4);
  EXPECT_EQ(trace.text(a.kind), "compute");
  EXPECT_EQ(trace.text(a.name), "forward");
  EXPECT_EQ(trace.lanes[a.lane], "tid 3");
  EXPECT_EQ(trace.text(b.kind), "é😀\n");
  EXPECT_EQ(b.start_ns, 848'671'675);
  EXPECT_EQ(b.rank, 0);
  EXPECT_EQ(trace.lanes[b.lane], "io thread");
  EXPECT_EQ(trace.num_ranks, 5);
  EXPECT_EQ(trace.steps, std::vector<int32_t>{5});
}

TEST_F(TraceTest, TruncationAnywhereIsAnError) {
  write_trace(random_trace(3, 12), at("whole.json"));
  write_trace(random_trace(3, 12), at("whole.json.gz"));
  for (const char* name : {"whole.json", "whole.json.gz"}) {
    const std::string whole = read_file(at(name));
    // The last byte of the plain file is a newline; one byte alone is not known to be gzip.
    for (size_t n = 0; n + 1 < whole.size(); n += n == 0 ? 2 : 1 + n / 40) {
      const std::string path = write("cut", whole.substr(0, n));
      const std::string text = error_of(path);
      ASSERT_NE(text.find("cut off after"), std::string::npos)
          << name << " cut at " << n << ": " << text;
      ReadTraceReport report;
      const Trace partial = read_trace(path, {.keep_partial = true}, &report);
      ASSERT_TRUE(report.partial);
      ASSERT_LE(partial.events.size(), 12u);
      if (std::string(name) == "whole.json" && n > whole.size() * 3 / 4) {
        ASSERT_GT(partial.events.size(), 0u);
      }
    }
  }
}

TEST_F(TraceTest, ErrorsSayWhere) {
  EXPECT_NE(error_of(at("absent.json")).find("no such file"), std::string::npos);
  EXPECT_NE(error_of(dir_).find("is a folder"), std::string::npos);
  EXPECT_NE(error_of(write("a", "{\"a\":1}")).find("traceEvents"), std::string::npos);
  EXPECT_NE(error_of(write("b", "hello")).find("at byte 0"), std::string::npos);
  EXPECT_NE(error_of(write("c", "{\"traceEvents\":[{\"ph\":\"X\"]}")).find("at byte 25"),
            std::string::npos);
  EXPECT_NE(error_of(write("d", "{\"traceEvents\":[]} x")).find("expected the end"),
            std::string::npos);
  EXPECT_NE(error_of(write("e", "{\"traceEvents\":[" + std::string(10000, '[')))
                .find("expected an object"),
            std::string::npos);
  EXPECT_NE(error_of(write("f", "{\"x\":" + std::string(10000, '['))).find("200 levels"),
            std::string::npos);
  // A damaged gzip stream: one bit flipped in the middle.
  write_trace(random_trace(5, 500), at("g.json.gz"));
  std::string bytes = read_file(at("g.json.gz"));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
  EXPECT_FALSE(error_of(write("g", bytes)).empty());
}

TEST_F(TraceTest, HostileBytesNeverCrash) {
  write_trace(random_trace(9, 20), at("whole.json"));
  const std::string whole = read_file(at("whole.json"));
  std::mt19937_64 rng(11);
  int refused = 0;
  for (int i = 0; i < 800; ++i) {
    std::string text = whole;
    for (int edits = 1 + static_cast<int>(rng() % 4); edits > 0; --edits) {
      const size_t where = rng() % text.size();
      switch (rng() % 3) {
        case 0:
          text[where] = static_cast<char>(rng());
          break;
        case 1:
          text.erase(where, 1 + rng() % 8);
          break;
        default:
          text.insert(where, 1, "{}[],:\"0e-."[rng() % 11]);
      }
    }
    try {
      const Trace trace = read_trace(write("h", text));
      for (const TraceEvent& e : trace.events) {
        ASSERT_LT(e.lane, trace.lanes.size());
        ASSERT_LT(e.name, trace.strings.size());
        ASSERT_GE(e.rank, 0);
        ASSERT_LT(e.rank, trace.num_ranks);
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 250) << "seed 11";
}

TEST_F(TraceTest, FullDiskLeavesTheOldFile) {
  write_trace(random_trace(1, 10), at("t.json.gz"));
  const std::string before = read_file(at("t.json.gz"));
  {
    const FileFaults faults(FileFaults::Op::write, 1, ENOSPC);
    EXPECT_THROW(write_trace(random_trace(2, 5000), at("t.json.gz")), Error);
  }
  EXPECT_EQ(read_file(at("t.json.gz")), before);
}

// Two stages of two replicas: a linear, a transfer between the stages, an all-reduce over the
// replicas.
program::Program two_by_two() {
  program::Program p;
  p.roles = {{"all", {{{"pp", 2}, {"dp", 2}}}}};
  p.num_layers = 1;
  const auto kind = [&](const char* op, double flops, int64_t bytes) {
    program::Kind k;
    k.op = op;
    k.flops = flops;
    k.bytes = bytes;
    return p.intern(std::move(k));
  };
  const program::KindId linear = kind("linear", 1e9, 100), send = kind("send", 0, 64),
                        recv = kind("recv", 0, 64), sum = kind("all_reduce", 0, 32);
  program::Group dp;
  dp.axes = {1};
  const program::GroupId group = p.intern(dp);
  for (int32_t stage = 0; stage < 2; ++stage) {
    program::RankClass cls;
    cls.name = "stage" + std::to_string(stage);
    cls.box = program::Box::at(0, stage);
    program::Task t;
    t.kind = linear;
    t.micro_batch = 0;
    t.layer = stage;
    t.stage = stage;
    t.recompute = stage == 1;
    cls.tasks.push_back(t);
    program::Task move;
    move.kind = stage == 0 ? send : recv;
    move.lane = stage == 0 ? program::Lane::intra : program::Lane::intra_rx;
    move.peer_axis = 0;
    move.peer = stage == 0 ? 1 : -1;
    move.tag = 3;
    move.stage = stage;
    cls.tasks.push_back(move);
    program::Task reduce;
    reduce.kind = sum;
    reduce.lane = program::Lane::intra;
    reduce.phase = program::Phase::grad;
    reduce.group = group;
    reduce.stage = stage;
    cls.tasks.push_back(reduce);
    p.classes.push_back(cls);
  }
  return p;
}

TEST(TraceBuilder, FillsEventsFromTheProgram) {
  program::Program program = two_by_two();
  program::Buffer buffer;
  buffer.type = {graph::DType::f32, {250}};
  program.classes[0].buffers = {buffer};
  program.classes[0].tasks[0].out = {0};
  program.classes[0].tasks[2].deps = {0, 1};
  TraceBuilder builder(program, "t", "run");
  const std::vector<int64_t> start = {0, 10, 20}, end = {10, 20, 19};  // the last did not run
  for (int32_t step : {7, 8}) {
    for (int32_t rank = 0; rank < 4; ++rank) {
      builder.add_step(rank, step, start, end, 100);
    }
  }
  for (int32_t rank = 0; rank < 4; ++rank) {
    builder.add(rank, 2, 8, 120, 130);
  }
  const Trace trace = builder.take();
  EXPECT_EQ(trace.num_ranks, 4);
  EXPECT_EQ(trace.steps, (std::vector<int32_t>{7, 8}));
  EXPECT_TRUE(trace.waits == (std::vector<TraceWaits>{{{0, 1}, {{2, 0, 1}}}, {{2, 3}, {}}}));
  ASSERT_EQ(trace.events.size(), 20u);
  // On both ranks of stage 0, in both steps: live while the first task runs.
  ASSERT_EQ(trace.memory.size(), 8u);
  EXPECT_EQ(trace.memory[0].t_ns, 100);
  EXPECT_EQ(trace.memory[0].bytes, 1000);
  EXPECT_EQ(trace.memory[1].t_ns, 110);
  EXPECT_EQ(trace.memory[1].bytes, 0);

  std::map<int64_t, std::vector<const TraceEvent*>> flows;
  std::map<int32_t, std::vector<int32_t>> groups;
  for (const TraceEvent& e : trace.events) {
    EXPECT_EQ(e.stage, e.rank / 2);
    const std::string& kind = trace.text(e.kind);
    if (kind == "linear") {
      EXPECT_EQ(e.flops, 1e9);
      EXPECT_EQ(e.start_ns, 100);
      EXPECT_EQ(trace.text(e.layer), e.stage == 0 ? "L0" : "head");
      EXPECT_EQ(trace.text(e.phase), "forward");
      EXPECT_EQ(trace.text(e.name), e.stage == 1 ? "linear (recompute)" : "");
      EXPECT_EQ(e.flow_end, FlowEnd::none);
      EXPECT_EQ(e.group, program::kNone);
    } else if (kind == "all_reduce") {
      EXPECT_EQ(trace.text(e.phase), "grad");
      groups[e.group].push_back(e.rank);
    } else {
      flows[e.flow].push_back(&e);
    }
  }
  // Two steps of two pairs, each id at one send and at the receive of its peer.
  EXPECT_EQ(flows.size(), 4u);
  for (const auto& [id, ends] : flows) {
    EXPECT_GT(id, 0);
    EXPECT_LE(id, int64_t{1} << 53);
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_EQ(ends[0]->flow_end, FlowEnd::out);
    EXPECT_EQ(ends[1]->flow_end, FlowEnd::in);
    EXPECT_EQ(ends[1]->rank, ends[0]->rank + 2);
  }
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups.begin()->second, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(groups.rbegin()->second, (std::vector<int32_t>{2, 3}));
}

}  // namespace
}  // namespace hocket::trace
