// SPDX-License-Identifier: Apache-2.0
// The report: one self-contained file, data that cannot break out of its place, explicit about
// missing data. HOCKET_REPORT_DEMO=<folder> keeps the pages for viewing (as report_browser_test.py
// does).
#include "diagnose/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "diagnose/report_fill.h"
#include "tests/diagnose/report_demo_util.h"

namespace hocket::diagnose {
namespace {

using nlohmann::json;

json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(open) + open.size(), end = page.find("</script>", at);
  return json::parse(page.substr(at, end - at));
}

// A 48-layer mixture of experts, 20,000 steps, 64 ranks of 4,000 tasks.
ReportData large_report() {
  ReportData r = demo_report(4, 2);
  r.title = "A long run of a large model";
  r.metrics = {};
  for (int step = 0; step < 20000; ++step) {
    TrainPoint p;
    p.step = step;
    p.time_s = 12.5 * step;
    p.loss = 2 + 8.0 / (1 + step / 50.0);
    p.step_s = step == 777 ? 900 : 12.5;
    p.lr = 1e-5;
    r.metrics.train.push_back(p);
    if (step % 100 == 99) {
      r.metrics.eval.push_back({step, p.time_s, p.loss, p.loss / 3, {{"code", {p.loss / 2, 1}}}});
    }
    if (step % 50 == 49) {
      LoadPoint load{step, {}, {}};
      for (int l = 0; l < 48; ++l) {
        load.load.emplace_back();
        for (int e = 0; e < 128; ++e) {
          load.load.back().push_back(100 + (l * 7 + e * 13 + step) % 90);
        }
      }
      r.metrics.load.push_back(load);
    }
  }
  trace::Trace t;
  t.num_ranks = 64;
  t.steps = {5};
  const trace::StringId kinds[] = {t.intern("linear"), t.intern("attention"), t.intern("send")};
  for (int rank = 0; rank < 64; ++rank) {
    int64_t now = 0;
    for (uint32_t i = 0; i < 4000; ++i) {
      trace::TraceEvent e;
      e.rank = rank;
      e.task = i;
      e.step = 5;
      e.layer = t.intern(fmt::format("L{}", i % 48));
      e.flops = 1e9;
      e.kind = kinds[i % 3];
      e.start_ns = now;
      now = e.end_ns = now + 1'000'000 + 37 * i;
      e.bytes = 4096 * (i % 100);
      t.events.push_back(e);
    }
  }
  r.predicted_step_s = 12.4;
  fill_measured(r, t);
  r.predicted = t;
  r.predicted.source = "simulation";
  r.memory.resize(1);
  MemoryBlock block = r.memory[0].blocks[0];
  for (int i = 0; i < 40000; ++i) {
    block.begin = 1e-3 * i;
    block.end = block.begin + 0.05;
    block.offset = int64_t{i % 50} << 30;
    block.bytes = int64_t{1} << (20 + i % 11);
    r.memory[0].blocks.push_back(block);
  }
  r.memory[0].planned.step_buffers = int64_t{50} << 30;
  r.memory[0].measured.step_buffers = int64_t{49} << 30;
  return r;
}

ReportData hostile_report() {
  ReportData r = demo_report(1, 3);
  const std::string nasty =
      "</script><script>document.title='broken'</script>&lt;<!-- \"'\\\n@DATA@";
  r.title = r.subtitle = r.command = r.config = nasty;
  r.facts.push_back({nasty, {{nasty, nasty}}});
  r.samples = {{nasty, "\xff\xfe bytes \x01\x7f and cut \xe2\x82", nasty, nasty}};
  r.examples = {{nasty, 3, 1, {{true, nasty}, {false, "\xe2\x82"}}}};
  r.lengths_text = nasty;
  r.files.push_back({nasty, nasty, -1});
  r.notes.push_back(nasty);
  r.baselines[0].name = nasty;
  for (trace::TraceEvent& e : r.step.events) {
    e.name = r.step.intern(nasty);
  }
  r.kinds[0].kind = nasty;
  r.kinds[1].predicted_seconds = std::numeric_limits<double>::infinity();
  r.metrics.train[5].loss = kMissing;
  r.metrics.train[6].grad_norm = std::numeric_limits<double>::infinity();
  return r;
}

void keep(const std::string& name, const std::string& page) {
  const char* folder = std::getenv("HOCKET_REPORT_DEMO");
  if (folder == nullptr) return;
  make_dirs(folder);
  write_file_atomic(join_path(folder, name + ".html"), page);
}

TEST(Report, LoadsNothingFromOutside) {
  for (const int ranks : {1, 4}) {
    const std::string page = report_html(demo_report(ranks, 1));
    EXPECT_LT(page.size(), 600'000u);
    for (const char* outside : {"src=", "@import", "url(h", "url(\"", "url('", "rel=\"stylesheet",
                                "fetch(", "XMLHttpRequest", "import(", "https://", "sendBeacon"}) {
      EXPECT_EQ(page.find(outside), page.npos) << outside;
    }
    // The only address is the name of the SVG element type, which nothing loads.
    EXPECT_EQ(page.find("http://"), page.find("http://www.w3.org/2000/svg"));
    EXPECT_EQ(page.find("http://", page.find("http://") + 1), page.npos);
    const json data = data_of(page);
    EXPECT_EQ(data["baselines"].size(), 2u);
    EXPECT_EQ(data["train"]["loss"].size(), 200u);
    EXPECT_EQ(data["load"]["numbers"][1], ranks == 1 ? 1 : 3);
    EXPECT_EQ(data["thinned"], 1);
    EXPECT_EQ(data["timelines"].size(), 2u);
    EXPECT_EQ(data["examples"][0]["parts"][1], (json{1, "So.\n"}));
    EXPECT_EQ(data["lengths"], (json{{16, 3}, {32, 40}, {64, 0}, {128, 7}}));
    EXPECT_EQ(data["samples"][0]["when"], "before training");
    EXPECT_GT(data["kinds"].size(), 20u);
    keep(ranks == 1 ? "one_rank" : "four_ranks", page);
  }
}

TEST(Report, EmptyDataMakesAPage) {
  const std::string page = report_html(ReportData());
  const json data = data_of(page);
  EXPECT_TRUE(data["load"].is_null());
  EXPECT_TRUE(data["num"]["final_bpb"].is_null());
  EXPECT_EQ(data["train"]["n"], 0);
  keep("empty", page);
}

// Pages after a training of one to three steps: with and without validation, all losses equal, no
// experts. report_browser_test.py checks the charts.
TEST(Report, ShortRunsMakePages) {
  for (size_t steps = 1; steps <= 3; ++steps) {
    ReportData report = demo_report(1, 4);
    report.metrics.train.resize(steps);
    report.metrics.eval = {{static_cast<int64_t>(steps), report.metrics.train.back().time_s + 0.1,
                            report.metrics.train.back().loss,
                            report.metrics.train.back().loss / 2.31}};
    report.metrics.load.resize(1);
    keep(fmt::format("short_{}", steps), report_html(report));
    report.metrics.eval.clear();
    report.metrics.load.clear();
    report.peak_flops = 1e10;
    for (TrainPoint& point : report.metrics.train) {
      point.loss = report.metrics.train[0].loss;
      point.mfu = 1.13;  // the measured peak was too low
    }
    const std::string page = report_html(report);
    const json data = data_of(page);
    EXPECT_EQ(data["train"]["n"], steps);
    EXPECT_TRUE(data["load"].is_null());
    EXPECT_TRUE(data["eval"]["step"].empty());
    keep(fmt::format("short_{}_bare", steps), page);
  }
}

TEST(Report, DataIsEscaped) {
  const ReportData report = hostile_report();
  const std::string page = report_html(report);
  EXPECT_TRUE(is_utf8(page));
  // Exactly the frame's own scripts, and no comment opened.
  size_t scripts = 0;
  for (size_t at = page.find("<script"); at != page.npos; at = page.find("<script", at + 1)) {
    ++scripts;
  }
  EXPECT_EQ(scripts, 2u);
  EXPECT_EQ(page.find("<!--"), page.npos);
  const json data = data_of(page);
  EXPECT_EQ(data["config"], report.config);
  EXPECT_EQ(data["examples"][0]["place"], report.title);
  EXPECT_EQ(data["examples"][0]["parts"][0], (json{1, report.title}));
  EXPECT_EQ(data["examples"][0]["parts"][1], (json{0, "\uFFFD"}));
  EXPECT_EQ(data["samples"][0]["prompt"], report.samples[0].prompt);
  EXPECT_EQ(data["samples"][0]["text"], "\uFFFD\uFFFD bytes \x01\x7f and cut \uFFFD");
  EXPECT_TRUE(data["train"]["loss"][5].is_null());
  EXPECT_TRUE(data["train"]["grad"][6].is_null());
  EXPECT_TRUE(data["kinds"][1][6].is_null());
  keep("hostile", page);
}

TEST(Report, LargeRunsAreThinned) {
  const ReportData report = large_report();
  const std::string page = report_html(report);
  EXPECT_LT(page.size(), 2'000'000u);
  const json data = data_of(page);
  const int64_t thinned = data["thinned"];
  EXPECT_GT(thinned, 1);
  EXPECT_EQ(data["train"]["step"].back(), 19999);
  EXPECT_EQ(data["train"]["n"], data["train"]["loss"].size());
  // One pause of 900 s does not show in the median of its piece.
  for (const json& s : data["train"]["step_s"]) {
    EXPECT_EQ(s, 12.5);
  }
  EXPECT_EQ(data["eval"]["step"].back(), 19999);
  EXPECT_EQ(data["eval"]["sets"][0]["name"], "code");
  EXPECT_EQ(data["eval"]["sets"][0]["loss"].size(), data["eval"]["step"].size());
  EXPECT_EQ(data["load"]["steps"].front(), 49);
  EXPECT_EQ(data["load"]["steps"].back(), 19999);
  const json& timeline = data["timelines"][0];
  EXPECT_EQ(timeline["ranks"], 64);
  EXPECT_LT(timeline["shown"], 64);
  EXPECT_GE(timeline["shown"], 1);
  EXPECT_EQ(timeline["tracks"][0]["e"].size(), 4u * 4000u);
  EXPECT_GT(data["memory"][0]["dropped"], 0);
  keep("large", page);
}

TEST(Report, CutsASingleLongRankInTime) {
  ReportData r;
  trace::Trace t;
  t.num_ranks = 1;
  t.steps = {0};
  for (uint32_t i = 0; i < 50000; ++i) {
    trace::TraceEvent e;
    e.kind = t.intern("linear");
    e.step = 0;
    e.task = i;
    e.start_ns = 100 * i;
    e.end_ns = e.start_ns + 90;
    t.events.push_back(e);
  }
  fill_measured(r, t);
  const json timeline = data_of(report_html(r))["timelines"][0];
  EXPECT_EQ(timeline["cut"], true);
  EXPECT_EQ(timeline["tracks"][0]["e"].size(), 4u * 16000u);
}

// More tasks than the page holds: the passes of all ranks are drawn; with very many ranks, of every
// second one.
TEST(Report, DrawsPassesOfALargeStep) {
  for (const int ranks : {4, 100}) {
    ReportData r;
    trace::Trace t;
    t.num_ranks = ranks;
    t.steps = {0};
    const trace::StringId linear = t.intern("linear"), forward = t.intern("forward");
    for (int32_t rank = 0; rank < ranks; ++rank) {
      for (int32_t i = 0; i < 5000; ++i) {
        trace::TraceEvent e;
        e.kind = linear;
        e.phase = forward;
        e.rank = rank;
        e.stage = rank;
        e.micro_batch = i / 1000;
        e.step = 0;
        e.start_ns = 100 * i;
        e.end_ns = e.start_ns + 100;
        t.events.push_back(e);
      }
    }
    fill_measured(r, t);
    const json timeline = data_of(report_html(r))["timelines"][0];
    EXPECT_LT(timeline["shown"], ranks);
    const json& passes = timeline["passes"];
    EXPECT_EQ(passes["ranks"], ranks);
    EXPECT_EQ(passes["shown"], ranks == 4 ? 4 : 50);
    EXPECT_EQ(passes["tracks"].back()["r"], ranks == 4 ? 3 : 98);
    EXPECT_EQ(passes["tracks"][0]["e"].size(), 4u * 5u);
    EXPECT_EQ(passes["tracks"][0]["e"][1], 100'000);
    EXPECT_EQ(passes["types"][0][0], "0F0");
  }
}

// Times in the page add up to the times of the trace.
TEST(Report, TimelineKeepsNanoseconds) {
  const ReportData r = demo_report(4, 5);
  const json timeline = data_of(report_html(r))["timelines"][0];
  size_t events = 0;
  for (const json& track : timeline["tracks"]) {
    std::vector<std::pair<int64_t, int64_t>> want;
    for (const trace::TraceEvent& e : r.step.events) {
      if (e.rank == track["r"] && r.step.lanes[e.lane] == track["l"].get<std::string>()) {
        want.push_back({e.start_ns, e.end_ns});
      }
    }
    std::sort(want.begin(), want.end());
    ASSERT_EQ(track["e"].size(), 4 * want.size());
    int64_t now = 0;
    for (size_t i = 0; i < want.size(); ++i, ++events) {
      now += track["e"][4 * i].get<int64_t>();
      EXPECT_EQ(now, want[i].first);
      now += track["e"][4 * i + 1].get<int64_t>();
      EXPECT_EQ(now, want[i].second);
      EXPECT_LT(track["e"][4 * i + 2], timeline["types"].size());
    }
  }
  EXPECT_EQ(events, r.step.events.size());
}

TEST(Report, FullDiskLeavesTheOldFile) {
  const std::string path = testing::TempDir() + "hocket_report_test.html";
  write_report_html(demo_report(1, 1), path);
  const std::string before = read_file(path);
  {
    const FileFaults faults(FileFaults::Op::write, 1, ENOSPC);
    EXPECT_THROW(write_report_html(demo_report(4, 1), path), Error);
  }
  EXPECT_EQ(read_file(path), before);
  remove_file(path);
}

}  // namespace
}  // namespace hocket::diagnose
