// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// The report of a training by rewards: hostile texts stay text, values are shown, the size is
// bounded, and the first step survives a resume. HOCKET_REPORT_DEMO=<folder> keeps the pages for
// viewing (as tests/diagnose/report_browser_test.py does).
#include "rl/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_writer.h"
#include "base/utf8.h"
#include "rl/experience.h"
#include "rl/report_metrics.h"
#include "tests/models/small_models.h"

namespace hocket::rl {
namespace {

using Json = nlohmann::ordered_json;

const std::string kNasty =
    "</script><script>document.title='broken'</script></pre><!-- \"'\\\n@DATA@ &lt;"
    "<!--first step ends--><img src=x onerror=alert(1)>";

/// Returns a tokenizer of all bytes, an end token, and tokens that would break an unescaped page.
data::Tokenizer hostile_tokenizer() {
  data::TokenizerSpec spec;
  for (int b = 0; b < 256; ++b) {
    spec.tokens.emplace_back(1, static_cast<char>(b));
  }
  spec.tokens.emplace_back("<|end|>");
  spec.tokens.emplace_back("</span></pre></script><script>alert(2)</script>");
  spec.tokens.emplace_back("\" onmouseover=\"alert(3)");
  spec.eos = 256;
  return data::Tokenizer(std::move(spec));
}

class RlReport : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "rl_report.XXXXXX";
    dir_ = mkdtemp(pattern.data());
    make_dirs(dir_ + "/model");
    write_file_atomic(dir_ + "/model/config.json", models::small_model("llama").dump());
  }
  void TearDown() override { remove_tree(dir_); }

  engine::Run run(const std::string& rl = "rewards: [{type: digits}]") const {
    return engine::parse_run(
        fmt::format("objective: rl\nmodel: {{path: {0}/model}}\n"
                    "data: {{sources: [{{path: {0}/train.jsonl}}]}}\n"
                    "train: {{steps: 40, seq_len: 32, lr: 1.0e-3}}\n"
                    "rl: {{prompts_per_step: 2, samples_per_prompt: 4, max_new_tokens: 8, {1}}}\n"
                    "output: {{dir: {0}}}\n",
                    dir_, rl),
        "run.yaml", {});
  }

  void write_metrics(int64_t updates, const std::string& reward = "digits") const {
    std::string text;
    for (int64_t u = 0; u <= updates; ++u) {
      const double x = static_cast<double>(u) / static_cast<double>(std::max<int64_t>(updates, 1));
      if (u > 0) {
        JsonWriter line;
        line.object().member("step", u).member("time_s", 2.0 * static_cast<double>(u));
        line.member("train/loss", 0.1 * std::sin(0.3 * static_cast<double>(u)));
        line.member("train/grad_norm", 1 + x).member("train/lr", 1e-3);
        line.member("reward", 0.1 + 0.8 * x).member("rl/reward_std_in_group", 0.4 - 0.3 * x);
        line.member("frac_reward_zero_std", x / 2).member("completions/mean_length", 8 - x);
        line.member("completions/clipped_ratio", 0.3 * (1 - x)).member("rewards/failed", 0.0);
        line.member("rewards/" + reward + "/mean", 0.1 + 0.8 * x);
        line.member("rewards/format/mean", x).member("entropy", 2 - x);
        line.member("clip_ratio/low_mean", 0.01).member("clip_ratio/high_mean", 0.02 * x);
        line.member("kl", 0.01 * x).member("approx_kl", 0.001);
        line.member("sampling/sampling_logp_difference/max", 0.0).member("timing_s/gen", 1.1);
        line.member("timing_s/reward", 0.01).member("timing_s/ref", 0.2);
        line.member("timing_s/old_log_prob", 0.0).member("perf/step_s", 0.9);
        text += line.end().take() + "\n";
      }
      if (u % 10 == 0) {
        text += fmt::format(
            "{{\"step\":{},\"time_s\":{},\"eval/held_out/reward\":{},\"eval/held_out/pass@1\":{},"
            "\"eval/final\":false}}\n",
            u, 2 * u, 0.1 + 0.7 * x, 0.05 + 0.9 * x);
      }
    }
    write_file_atomic(dir_ + "/metrics.jsonl", text + "{\"step\":99,\"time_");
  }

  std::string dir_;
};

/// Samples of `groups` x `answers`, each with `ids` as its tokens.
struct Step {
  std::vector<Sample> samples;
  std::vector<LossInputs> loss_inputs;
  std::vector<Prompt> prompts;  ///< by group
  PromptOf prompt_of() const {
    return [this](size_t i) -> const Prompt& {
      return prompts[static_cast<size_t>(samples[i].group) - prompts_before];
    };
  }
  size_t prompts_before = 7;
};

Step step_of(int64_t groups, int64_t answers, const std::vector<int32_t>& ids,
             const std::string& prompt = "reverse 12 ") {
  Step step;
  for (int64_t g = 0; g < groups; ++g) {
    Prompt& p = step.prompts.emplace_back();
    p.index = g;
    p.text = prompt;
    p.ground_truth = prompt.size() > 40 ? Json{{"x", prompt}} : Json("21");
    p.data_source = "task/reverse";
    for (int64_t a = 0; a < answers; ++a) {
      Sample& s = step.samples.emplace_back();
      s.group = g + 7;
      s.index = a;
      s.tokens = ids;
      s.status = a == 0 ? SampleStatus::truncated : SampleStatus::completed;
      s.reward = s.shaped_reward = a % 2 == 0 ? 0.25 : 1;
      s.rewards["digits"].score = s.reward;
      LossInputs& t = step.loss_inputs.emplace_back();
      t.group = s.group;
      for (size_t i = 0; i < ids.size(); ++i) {
        s.logprobs.push_back(-0.125 * static_cast<double>(i + 1));
        t.advantages.push_back((a % 2 == 0 ? -1 : 1) * 0.875);
      }
      s.sampled_logprobs = s.logprobs;
    }
  }
  return step;
}

/// HTML as a strict parser reads it: tags must nest, attributes be in double quotes. `fault` names
/// the first thing that the report does not write.
struct Parsed {
  std::map<std::string, int> tags;
  std::vector<std::string> titles;
  std::string text;
  std::string fault;
};

Parsed parse_html(std::string_view html) {
  Parsed out;
  std::vector<std::string> open;
  for (size_t at = 0; at < html.size() && out.fault.empty();) {
    if (html[at] != '<') {
      out.text += html[at++];
      continue;
    }
    if (html.substr(at, 4) == "<!--") {
      at = html.find("-->", at) + 3;
      ++out.tags["comment"];
      continue;
    }
    const bool closes = html[at + 1] == '/';
    size_t i = at + (closes ? 2 : 1);
    const size_t name_begin = i;
    while (i < html.size() && (isalnum(static_cast<unsigned char>(html[i])) != 0)) {
      ++i;
    }
    const std::string name(html.substr(name_begin, i - name_begin));
    while (i < html.size() && html[i] != '>') {
      if (html[i] == '"') {
        const size_t end = html.find('"', i + 1);
        if (html.substr(i - 6, 6) == "title=") {
          out.titles.emplace_back(html.substr(i + 1, end - i - 1));
        }
        i = end;
      } else if (html.substr(i, 2) == "on") {
        out.fault = "an attribute that acts in " + std::string(html.substr(at, 80));
      }
      ++i;
    }
    at = i + 1;
    if (!closes) {
      ++out.tags[name];
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      out.fault = fmt::format("</{}> ends {}", name, open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  if (out.fault.empty() && !open.empty()) {
    out.fault = open.back() + " has no end";
  }
  return out;
}

std::string main_part(const std::string& page) {
  const std::string begin = "id=\"main\">";
  const size_t at = page.find(begin) + begin.size();
  return page.substr(at, page.find("<noscript>", at) - at);
}

Json data_part(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

int occurrences(const std::string& text, const std::string& of) {
  int count = 0;
  for (size_t at = text.find(of); at != text.npos; at = text.find(of, at + 1)) {
    ++count;
  }
  return count;
}

void keep_page(const std::string& name, const std::string& page) {
  const char* folder = std::getenv("HOCKET_REPORT_DEMO");
  if (folder == nullptr) return;
  make_dirs(folder);
  write_file_atomic(join_path(folder, name + ".html"), page);
}

void expect_no_control_characters(const std::string& page) {
  for (const char c : page) {
    ASSERT_TRUE(static_cast<uint8_t>(c) >= 0x20 || c == '\n' || c == '\t') << int{c};
    ASSERT_NE(c, '\x7f');
  }
}

TEST_F(RlReport, ShowsValuesSamplesAndState) {
  const data::Tokenizer tokenizer = hostile_tokenizer();
  const engine::Run r =
      run("rewards: [{type: digits}], temperature: 0.7, top_k: 5, old_logprobs: trainer");
  write_metrics(40);
  Report report(r, tokenizer, "hocket rl run.yaml");
  Step step = step_of(6, 4, {'2', '1', '\n', 256});
  report.take_step(1, step.samples, step.loss_inputs, step.prompt_of());
  step.samples[1].sampled_logprobs[0] = -0.0625;
  report.take_step(40, step.samples, step.loss_inputs, step.prompt_of());
  report.take_evaluation("held_out", 40, step.samples, step.prompt_of());
  report.write(Report::State::finished, 40, 40);
  const std::string page = read_file(dir_ + "/report.html");
  keep_page("rl", page);
  EXPECT_LT(page.size(), 200'000u);
  const Parsed parsed = parse_html(main_part(page));
  EXPECT_EQ(parsed.fault, "");
  for (const char* text :
       {"finished after 40 updates", "hocket rl run.yaml", "Samples before update 1",
        "Samples before update 40", "Held-out samples of held_out, after update 40",
        "ground truth: 21", "truncated", "reward 0.25", "digits 0.25", "temperature 0.7", "top_k 5",
        "prompts_per_step: 2", "rewards/digits/mean", "eval/held_out/pass@1", "0.95",
        "Sampling and training differ", "mean reward of the samples"}) {
    EXPECT_NE(parsed.text.find(text), parsed.text.npos) << text;
  }
  EXPECT_EQ(parsed.text.find("raw logits"), parsed.text.npos);  // both are at 0.7
  // Two steps of four groups of six, and the evaluation's, which has no advantages.
  EXPECT_EQ(parsed.tags.at("details"), 3 * 4 + 1);
  EXPECT_EQ(occurrences(page, "class=\"n4\""), 2 * 4 * 2 * 4);
  EXPECT_EQ(occurrences(page, "class=\"p4\""), 2 * 4 * 2 * 4);
  EXPECT_EQ(occurrences(page, "title=\"log p -0.125, advantage 0.875\""), 2 * 4 * 2 - 1);
  EXPECT_EQ(occurrences(page, "title=\"log p -0.125 (drawn at -0.0625), advantage 0.875\""), 1);
  const Json data = data_part(page);
  EXPECT_EQ(data["updates"]["columns"]["reward"].size(), 40u);
  EXPECT_EQ(data["updates"]["columns"]["reward"].back(), 0.9);
  EXPECT_EQ(data["evaluations"]["step"], Json({0, 10, 20, 30, 40}));
}

TEST_F(RlReport, HostileTextsStayText) {
  const data::Tokenizer tokenizer = hostile_tokenizer();
  engine::Run r = run("rewards: [{type: digits, name: \"<b>\"}], stop: [\"</script>\"]");
  write_metrics(10, "</script><script>alert(4)</script>");
  Report report(r, tokenizer, "hocket rl " + kNasty);
  std::vector<int32_t> ids = {257, 258, 256, -1, 300, 0xe2, 0x82, 0xac, 0xe2, 0x82, 'a'};
  for (int32_t b = 0; b < 256; ++b) {
    ids.push_back(b);
  }
  for (const char c : std::string("\u202E\u200B\u2066\uFEFF")) {
    ids.push_back(static_cast<uint8_t>(c));
  }
  Step step = step_of(2, 2, ids, kNasty + "\xff\xfe\x01\x7f\u202E cut \xe2\x82");
  Sample& sample = step.samples[0];
  sample.rewards[kNasty] = {NAN, true, kNasty + std::string("\0\x1b[31m", 6), 3, {{kNasty, 1}}};
  sample.reward_failed = true;
  sample.reward = INFINITY;
  step.loss_inputs[1].advantages[3] = NAN;
  step.loss_inputs[1].counts = false;
  report.take_step(3, step.samples, step.loss_inputs, step.prompt_of());
  report.take_evaluation(kNasty, 3, step.samples, step.prompt_of());
  report.write_failed(9, 40, "[rl] " + kNasty);
  const std::string page = read_file(dir_ + "/report.html");
  keep_page("rl_hostile", page);
  EXPECT_TRUE(is_utf8(page));
  expect_no_control_characters(page);
  const Parsed parsed = parse_html(main_part(page));
  EXPECT_EQ(parsed.fault, "");
  EXPECT_EQ(parsed.tags.count("script") + parsed.tags.count("img"), 0u);
  EXPECT_EQ(occurrences(page, "<script"), 2);
  EXPECT_EQ(occurrences(page, "</script>"), 2);
  EXPECT_EQ(occurrences(page, "<img"), 0);
  EXPECT_EQ(occurrences(page, "@DATA@"), occurrences(page, "@DATA@ &amp;lt;"));
  for (const std::string& title : parsed.titles) {
    EXPECT_EQ(title.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.,:() "), title.npos)
        << title;
  }
  for (const char* text :
       {"failed after update 9 of 40", "failed after 3 tries", "not in the loss", "&lt;/script&gt;",
        "[U+202E]", "[U+200B]", "[U+2066]", "[U+FEFF]", "[id -1]", "[id 300]", "\u20AC", "\u2400",
        "\u241B", "\u2421", "not a number", "infinite"}) {
    EXPECT_NE(parsed.text.find(text), parsed.text.npos) << text;
  }
  // Tokens that share a character are one span.
  EXPECT_EQ(occurrences(page, ">\u20AC</span>"), 3 * 2 * 2);
}

TEST_F(RlReport, SizeAndTimeAreBounded) {
  const data::Tokenizer tokenizer = hostile_tokenizer();
  const engine::Run r = run();
  write_metrics(20'000);
  Report report(r, tokenizer, std::string(1 << 20, '<'));
  std::vector<int32_t> ids;
  for (int i = 0; i < 20'000; ++i) {
    ids.push_back('<');
  }
  const Step step = step_of(64, 32, ids, std::string(1 << 20, '"'));
  const std::clock_t begin = std::clock();
  report.take_step(1, step.samples, step.loss_inputs, step.prompt_of());
  for (int64_t u = 2; u < 12; ++u) {
    report.take_step(u, step.samples, step.loss_inputs, step.prompt_of());
  }
  for (int set = 0; set < 50; ++set) {
    report.take_evaluation(fmt::format("set{}", set), 11, step.samples, step.prompt_of());
  }
  // Each of the 61 takes milliseconds of the processor.
  EXPECT_LT(std::clock() - begin, 4 * CLOCKS_PER_SEC);
  report.write(Report::State::running, 11, 40);
  EXPECT_FALSE(report.is_due());
  const std::string page = read_file(dir_ + "/report.html");
  keep_page("rl_large", page);
  EXPECT_LT(page.size(), 4'000'000u);
  EXPECT_EQ(parse_html(main_part(page)).fault, "");
  const Json data = data_part(page);
  EXPECT_LE(data["updates"]["step"].size(), 1000u);
  EXPECT_EQ(data["updates"]["step"].back(), 20'000);
  EXPECT_EQ(data["rows"], 20'000);
  EXPECT_NE(page.find("tokens left out"), page.npos);
  EXPECT_NE(page.find("16 answers more"), page.npos);
  // An answer is cut in its middle, so that its end shows how it ended.
  const ShownSamples shown =
      shown_samples(1, step.samples, step.loss_inputs, step.prompt_of(), 640);
  EXPECT_EQ(shown.groups, 64);
  ASSERT_EQ(shown.shown.size(), 4u);
  EXPECT_EQ(shown.shown[3].number, 7 + 48);
  const ShownAnswer& answer = shown.shown[0].shown[0];
  EXPECT_EQ(answer.head.ids.size() + answer.tail.ids.size(), 10u);
  EXPECT_EQ(answer.tail.logprobs.back(), -0.125 * 20'000);
}

TEST_F(RlReport, ShortAnswersLeaveRoomToLongOnes) {
  Step step = step_of(1, 4, {1, 2, 3});
  step.samples[3].tokens.assign(500, 65);
  const ShownSamples shown = shown_samples(1, step.samples, {}, step.prompt_of(), 109);
  EXPECT_EQ(shown.shown[0].shown[0].head.ids.size(), 3u);
  EXPECT_EQ(shown.shown[0].shown[3].head.ids.size(), 75u);
  EXPECT_EQ(shown.shown[0].shown[3].tail.ids.size(), 25u);
}

TEST_F(RlReport, ResumedTrainingKeepsTheFirstStep) {
  const data::Tokenizer tokenizer = hostile_tokenizer();
  const engine::Run r = run();
  write_metrics(5);
  const Step first = step_of(1, 1, {'F', 'i', 'r', 's', 't'}, "first prompt " + kNasty);
  const Step later = step_of(1, 1, {'L', 'a', 't', 'e', 'r'}, "later prompt");
  {
    Report report(r, tokenizer, "hocket rl run.yaml");
    report.take_step(1, first.samples, first.loss_inputs, first.prompt_of());
    report.write(Report::State::stopped, 2, 40);
  }
  for (int64_t update = 3; update < 5; ++update) {  // resumed twice
    Report report(r, tokenizer, "hocket rl run.yaml");
    report.take_step(update, later.samples, later.loss_inputs, later.prompt_of());
    report.write(Report::State::running, update, 40);
    const std::string page = read_file(dir_ + "/report.html");
    EXPECT_NE(page.find("Samples before update 1<"), page.npos);
    EXPECT_EQ(occurrences(page, ">first prompt"), 1);
    EXPECT_EQ(occurrences(page, ">later prompt"), 1);
    EXPECT_EQ(parse_html(main_part(page)).fault, "");
  }
  // Another training in the same folder does not show these samples.
  Report report(r, tokenizer, "hocket rl run.yaml");
  report.take_step(1, later.samples, later.loss_inputs, later.prompt_of());
  EXPECT_EQ(occurrences(report.html(Report::State::running, 1, 40), "first prompt"), 0);
}

TEST_F(RlReport, NamesMissingData) {
  const data::Tokenizer tokenizer = hostile_tokenizer();
  const engine::Run r = run();
  const Report report(r, tokenizer, "");
  const std::string page = report.html(Report::State::running, 0, 40);
  keep_page("rl_empty", page);
  EXPECT_EQ(parse_html(main_part(page)).fault, "");
  EXPECT_NE(page.find("No metrics were recorded."), page.npos);
}

TEST(RlReportMetrics, ResumedStepsReplaceEarlierLinesOfTheSameStep) {
  const std::string path = testing::TempDir() + "rl_report_metrics.jsonl";
  write_file_atomic(
      path,
      "{\"step\":0,\"eval/a/reward\":1,\"eval/final\":false}\n"
      "{\"step\":1,\"time_s\":1,\"reward\":1}\n"
      "{\"step\":2,\"time_s\":2,\"reward\":2}\n"
      "{\"step\":2,\"eval/a/reward\":3,\"eval/final\":false}\n"
      "no metrics\n[1]\n7\n{\"reward\":7}\n{\"step\":9} {\"step\":8}\n"
      "{\"step\":2,\"time_s\":3,\"reward\":5,\"kl\":null,\"new\":4,\"moe/load\":[[1,2]]}\n"
      "{\"step\":3,\"time_s\":4");
  const MetricTable table = read_metric_table(path);
  EXPECT_EQ(table.updates.steps, (std::vector<double>{1, 2}));
  EXPECT_EQ(*table.updates.find("reward"), (std::vector<double>{1, 5}));
  EXPECT_TRUE(std::isnan(table.updates.find("new")->front()));
  EXPECT_EQ(table.updates.find("kl"), nullptr);
  EXPECT_EQ(table.updates.find("moe/load"), nullptr);
  EXPECT_EQ(table.evaluations.steps, (std::vector<double>{0}));
  const MetricColumns thin = thinned(table.updates, 1);
  EXPECT_EQ(thin.steps, (std::vector<double>{2}));
  EXPECT_EQ(thin.find("reward")->front(), 3);
  EXPECT_EQ(thin.find("new")->front(), 4);
  remove_file(path);
  EXPECT_EQ(read_metric_table(path).updates.rows(), 0u);
}

TEST(RlReportMetrics, ClipsAreThoseOfTheLoss) {
  const auto shares = [](const char* loss) {
    engine::RlSection section;
    section.loss = loss;
    LossInputs inputs;
    inputs.old = {0, 0, 0, 0};
    inputs.weights = {1, 1, 1, 0};
    inputs.advantages = {1, 1, 1, 1};
    UpdateStats stats(section);
    // Ratios 1.65, 0.90, 0.90: their geometric mean is 1.10, within the clip at 1.2.
    stats.add(inputs, std::vector<double>{0.5, -0.1, -0.1, 9}, std::vector<double>{1, 1, 1, 1});
    std::map<std::string, double> values;
    for (const auto& [name, value] : stats.means()) {
      values[name] = value;
    }
    return values;
  };
  EXPECT_NEAR(shares("ppo").at("clip_ratio/high_mean"), 1.0 / 3, 1e-12);
  EXPECT_EQ(shares("gspo").at("clip_ratio/high_mean"), 0);
  EXPECT_EQ(shares("reinforce").at("clip_ratio/high_mean"), 0);
}

TEST(RlReportMetrics, FailedRewardsOfAnEvaluationAreCounted) {
  std::vector<Sample> samples(4);
  for (Sample& sample : samples) {
    sample.rewards["exact"].score = 1;
  }
  samples[3].rewards["exact"].failed = samples[3].reward_failed = true;
  for (const auto& [name, value] : evaluation_metrics(samples, 1, "exact", 1)) {
    const double expected = name == "pass@1" ? 0.75 : name == "rewards/failed" ? 0.25 : value;
    EXPECT_EQ(value, expected) << name;
  }
}

std::map<std::string, double> by_name(const train::Values& values) {
  return {values.begin(), values.end()};
}

/// An answer that a judge gives 3 of 10 is right only from a lowest score that says so.
TEST(RlReportMetrics, AnswersAreRightFromALowestScore) {
  std::vector<Sample> samples(4);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].rewards["judge"].score = std::array{3, 8, 7, 1}[i];
  }
  EXPECT_EQ(by_name(evaluation_metrics(samples, 2, "judge", 1)).at("pass@1"), 1);
  EXPECT_EQ(by_name(evaluation_metrics(samples, 2, "judge", 8)).at("pass@1"), 0.25);
  EXPECT_EQ(by_name(evaluation_metrics(samples, 2, "judge", 8)).at("pass@2"), 0.5);
}

TEST(RlReportMetrics, SamplesLeftOutAreNoPartOfMeansOrGroups) {
  std::vector<Sample> samples(6);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].reward = std::array{1, 1, -9, 0, 1, -9}[i];
    samples[i].rewards["exact"].score = samples[i].reward;
    samples[i].left_out = samples[i].reward_failed = samples[i].rewards["exact"].failed =
        i == 2 || i == 5;
  }
  EXPECT_TRUE(is_even(std::span(samples).first(3)));
  EXPECT_FALSE(is_even(std::span(samples).last(3)));
  EXPECT_TRUE(is_even(std::span(samples).last(2)));  // one alone
  const auto values = by_name(sample_metrics(samples, 3));
  EXPECT_EQ(values.at("reward"), 0.75);
  EXPECT_EQ(values.at("rewards/exact/mean"), 0.75);
  EXPECT_EQ(values.at("frac_reward_zero_std"), 0.5);
  EXPECT_NEAR(values.at("rewards/failed"), 1.0 / 3, 1e-15);
  EXPECT_EQ(by_name(evaluation_metrics(samples, 3, "exact", 1)).at("reward"), 0.75);
  const std::vector<LossInputs> loss_inputs = loss_inputs_of({}, samples);
  EXPECT_TRUE(loss_inputs[0].scored && loss_inputs[0].counts);
  EXPECT_FALSE(loss_inputs[2].scored || loss_inputs[2].counts);
  EXPECT_TRUE(samples_of(to_bytes(samples))[2].left_out);
  EXPECT_FALSE(samples_of(to_bytes(samples))[3].left_out);
  for (Sample& sample : samples) {
    sample.left_out = sample.rewards["exact"].failed = true;
  }
  EXPECT_TRUE(std::isnan(by_name(sample_metrics(samples, 3)).at("reward")));
  EXPECT_TRUE(std::isnan(by_name(sample_metrics(samples, 3)).at("rewards/exact/mean")));
}

TEST(RlReportMetrics, AnUpdateThatTrainsNothingMeasuresNothing) {
  const engine::RlSection section;
  LossInputs inputs;
  inputs.old = inputs.advantages = {0, 0};
  inputs.weights = {0, 0};
  UpdateStats stats(section);
  stats.add(inputs, std::vector<double>{-1, -1}, std::vector<double>{1, 1});
  for (const auto& [name, value] : stats.means()) {
    EXPECT_TRUE(std::isnan(value)) << name;
  }
}

TEST(RlReportMetrics, EveryMetricHasAMeaning) {
  Step step = step_of(2, 2, {1, 2});
  engine::RlSection section;
  step.loss_inputs[0].weights = {1, 1};
  step.loss_inputs[0].old = step.loss_inputs[0].reference = {-1, -1};
  UpdateStats stats(section);
  stats.add(step.loss_inputs[0], std::vector<double>{-1, -1}, std::vector<double>{1, 1});
  train::Values all = sample_metrics(step.samples, 2);
  for (const auto& [name, value] : stats.means()) {
    all.emplace_back(name, value);
  }
  for (const auto& [name, value] : evaluation_metrics(step.samples, 2, "exact", 1)) {
    all.emplace_back("eval/held_out/" + name, value);
  }
  for (const auto& [name, value] : all) {
    EXPECT_NE(meaning_of(name), "") << name;
  }
  EXPECT_GT(all.size(), 20u);
}

}  // namespace
}  // namespace hocket::rl
