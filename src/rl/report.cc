// SPDX-License-Identifier: Apache-2.0
// Text of the page: head, tables, meanings, and the data of its curves. Frame, style and charts are
// those of diagnose; page/ has what is added to them.
#include "rl/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "diagnose/html_page.h"
#include "rl/experience.h"
#include "rl/report_metrics.h"
#include "run/describe.h"

namespace hocket::rl {

namespace {

constexpr std::string_view kReportScript =
#include "rl/page/rl.js.inc"
    ;
constexpr std::string_view kReportStyle =
#include "rl/page/rl.css.inc"
    ;

constexpr int64_t kStepTokens = 4000;        // shown of a step: about 400 KB
constexpr int64_t kEvaluationTokens = 2000;  // of an evaluation
constexpr size_t kSets = 8;                  // evaluations that are shown
constexpr size_t kConfigBytes = 64 << 10;
constexpr size_t kErrorBytes = 8 << 10;
constexpr double kMinPauseSeconds = 60;  // between two writes of a running training
constexpr double kWriteShare = 0.01;     // of the time, spent in writing
constexpr int64_t kMaxPageBytes = 16 << 20;
constexpr std::string_view kFirstBegins = "<!--first step ", kFirstEnds = "<!--first step ends-->";

std::string minute_now() {
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(std::time(nullptr)));
}

std::string short_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : "\u2013";
}

/// Means of the first and the last twentieth of a column's values.
struct Ends {
  double first = 0, last = 0;
  int64_t values = 0;  ///< in each mean; 0: the column has none
};

Ends ends_of(const std::vector<double>* column) {
  Ends ends;
  if (column == nullptr) return ends;
  std::vector<double> finite;
  std::copy_if(column->begin(), column->end(), std::back_inserter(finite),
               [](double x) { return std::isfinite(x); });
  if (finite.empty()) return ends;
  const size_t n = std::max<size_t>(finite.size() / 20, 1);
  for (size_t i = 0; i < n; ++i) {
    ends.first += finite[i] / static_cast<double>(n);
    ends.last += finite[finite.size() - 1 - i] / static_cast<double>(n);
  }
  ends.values = static_cast<int64_t>(n);
  return ends;
}

std::string state_text(Report::State state, int64_t done, int64_t of) {
  switch (state) {
    case Report::State::running:
      return fmt::format("running, after update {} of {}", done, of);
    case Report::State::finished:
      return fmt::format("finished after {}", counted(done, "update"));
    case Report::State::stopped:
      return fmt::format("stopped after update {} of {}", done, of);
    case Report::State::failed:
      return fmt::format("failed after update {} of {}", done, of);
  }
  return "";
}

std::string tile(const std::string& name, const std::string& value, const std::string& note) {
  return fmt::format(
      "<div class=\"tile\"><div class=\"k\">{}</div><div class=\"v\">{}</div><div "
      "class=\"n\">{}</div></div>\n",
      visible_html(name), visible_html(value), visible_html(note));
}

std::string fact(const std::string& name, const std::string& value) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>", visible_html(name), visible_html(value));
}

std::string section_html(const std::string& id, const std::string& title, const std::string& link,
                         const std::string& content) {
  return fmt::format(
      "<section id=\"{0}\" data-link=\"{1}\" aria-labelledby=\"{0}-h\"><h2 "
      "id=\"{0}-h\">{2}</h2>\n{3}</section>\n",
      id, link, title, content);
}

/// Returns a tile for the first set's pass@1, or its reward.
std::string held_out_tile(const MetricColumns& evaluations) {
  for (const char* wanted : {"pass@1", "reward"}) {
    for (const std::string& name : evaluations.names) {
      if (!name.starts_with("eval/") || !name.ends_with(wanted)) continue;
      const std::vector<double>& column = *evaluations.find(name);
      double first = NAN, last = NAN;
      for (const double value : column) {
        first = std::isfinite(first) ? first : value;
        last = std::isfinite(value) ? value : last;
      }
      return tile(name, short_number(last), "at first " + short_number(first));
    }
  }
  return "";
}

std::string tiles_html(const MetricTable& table, int64_t done, int64_t of) {
  std::vector<std::string> tiles = {
      tile("Updates", fmt::format("{}", done), fmt::format("of {}", of))};
  if (const Ends reward = ends_of(table.updates.find("reward")); reward.values > 0) {
    tiles.push_back(tile("Reward", short_number(reward.last),
                         fmt::format("at first {}; means of {}", short_number(reward.first),
                                     counted(reward.values, "update"))));
  }
  if (const std::string held_out = held_out_tile(table.evaluations); !held_out.empty()) {
    tiles.push_back(held_out);
  }
  if (const auto* column = table.updates.find("sampling/sampling_logp_difference/max")) {
    double largest = 0;
    for (const double value : *column) {
      largest = std::isnan(value) ? largest : std::max(largest, value);
    }
    tiles.push_back(tile("Sampling and training differ", short_number(largest),
                         "largest log-probability difference"));
  }
  if (!table.updates.times.empty() && std::isfinite(table.updates.times.back())) {
    tiles.push_back(tile("Time", human_time(table.updates.times.back()), "of all steps"));
  }
  std::string out = fmt::format("<div class=\"tiles\" style=\"--n:{}\">\n", tiles.size());
  for (const std::string& text : tiles) {
    out += text;
  }
  return out + "</div>\n";
}

std::string facts_html(const engine::Run& run) {
  const engine::RlSection& rl = run.config.rl;
  std::string rewards;
  for (const engine::RewardSection& reward : rl.rewards) {
    const std::string& name = name_of(reward);
    rewards += fmt::format("{}{}{}", rewards.empty() ? "" : ", ", name,
                           reward.weight == 1 ? "" : fmt::format(" x {:g}", reward.weight));
  }
  std::string sources;
  for (const data::SourceOptions& source : run.config.data.sources) {
    sources += (sources.empty() ? "" : ", ") + source.path;
  }
  std::string out = "<div class=\"facts\"><div><h3>Training</h3><dl>";
  out += fact("step", fmt::format("{} x {}, {}", counted(rl.prompts_per_step, "prompt"),
                                  counted(rl.samples_per_prompt, "sample"),
                                  counted(rl.updates_per_step(), "update")));
  out += fact("advantage", rl.advantage) + fact("loss", rl.loss) +
         fact("aggregation", rl.aggregation) + fact("rewards", rewards);
  if (rl.kl_coef > 0) {
    out += fact("divergence",
                fmt::format("{} in the {}, weight {:g}", rl.kl_estimator, rl.kl_in, rl.kl_coef));
  }
  out += "</dl></div><div><h3>Model and data</h3><dl>" +
         fact("model", engine::describe(run.model)) + fact("plan", engine::describe(run)) +
         fact("prompts", sources);
  return out + "</dl></div></div>\n";
}

std::string log_probabilities_html(const engine::RlSection& rl) {
  std::string out = "<ul>";
  const auto item = [&](const std::string& text) {
    out += "<li>" + visible_html(text) + "</li>\n";
  };
  item(rl.temperature == 1
           ? "They are natural logarithms of the softmax of the model's raw logits, over the whole "
             "vocabulary."
           : fmt::format("They are natural logarithms of the softmax of the model's logits divided "
                         "by the temperature {:g}, over the whole vocabulary.",
                         rl.temperature));
  if (rl.top_k > 0 || rl.top_p < 1 || rl.min_p > 0) {
    item(fmt::format(
        "Samples are drawn within limits (top_k {}, top_p {:g}, min_p {:g}). The probability as "
        "drawn, within them, is recorded beside and is mu of the corrections; a ratio never uses "
        "it.",
        rl.top_k, rl.top_p, rl.min_p));
  } else {
    item("Samples are drawn from all tokens: the recorded log-probability is that of the draw.");
  }
  item(rl.old_logprobs == "rollout"
           ? "The ratio is anchored at the log-probabilities of sampling (old_logprobs: rollout)."
           : "The ratio is anchored at log-probabilities that training computed again before the "
             "first update of a step (old_logprobs: trainer).");
  if (rl.correction.type != "none") {
    item(fmt::format("Correction {} by {}, limits {:g} and {:g}.", rl.correction.type,
                     rl.correction.level, rl.correction.low, rl.correction.high));
  }
  item(rl.strict
           ? "A difference between sampling and training in any bit ends the run (strict: true)."
           : "Differences between sampling and training are measured, and end nothing (strict: "
             "false).");
  return out + "</ul>\n";
}

/// Adds rows of the table: a metric, its meaning, its first and last value, its range.
void append_rows(const MetricColumns& all, std::string* out) {
  for (const std::string& name : all.names) {
    double first = NAN, last = NAN, least = INFINITY, most = -INFINITY;
    for (const double value : *all.find(name)) {
      if (!std::isfinite(value)) continue;
      first = std::isfinite(first) ? first : value;
      last = value;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    *out += fmt::format(
        "<tr><td><code>{}</code></td><td class=\"l wide\">{}</td><td>{}</td><td>{}</td><td "
        "class=\"wide\">{}</td><td class=\"wide\">{}</td></tr>\n",
        visible_html(name), visible_html(meaning_of(name)), short_number(first), short_number(last),
        short_number(least), short_number(most));
  }
}

std::string table_html(const MetricTable& table) {
  if (table.updates.rows() + table.evaluations.rows() == 0) {
    return "<p class=\"missing\">No metrics were recorded.</p>\n";
  }
  std::string out =
      "<div class=\"tablewrap\"><table class=\"data\"><thead><tr><th>metric</th><th class=\"l "
      "wide\">meaning</th><th>first</th><th>last</th><th class=\"wide\">least</th><th "
      "class=\"wide\">most</th></tr></thead><tbody>\n";
  append_rows(table.evaluations, &out);
  append_rows(table.updates, &out);
  return out + "</tbody></table></div>\n";
}

std::string legend_html() {
  return "<p class=\"cap\">Tokens with an advantage above 0 are <span class=\"tokens\"><span "
         "class=\"p3\">green</span></span>, below 0 <span class=\"tokens\"><span "
         "class=\"n3\">red</span></span>, the larger the stronger. Point at a token for its "
         "log-probability and advantage. The groups stand evenly spaced in the step.</p>\n";
}

}  // namespace

Report::Report(const engine::Run& run, const data::Tokenizer& tokenizer, std::string command)
    : run_(run),
      tokenizer_(tokenizer),
      command_(std::move(command)),
      path_(join_path(run.config.output.dir, "report.html")),
      began_(minute_now()),
      written_ns_(now_ns()) {}

void Report::take_step(int64_t update, std::span<const Sample> samples,
                       std::span<const LossInputs> loss_inputs, const PromptOf& prompt_of) {
  newest_ = shown_samples(update, samples, loss_inputs, prompt_of, kStepTokens);
  if (first_update_ == 0 && update > 1) {
    recover_first();
  }
  if (first_update_ == 0) {
    first_update_ = update;
    first_ = to_html(newest_, tokenizer_);
  }
}

/// Takes the first step from the page of the training that this one goes on with.
void Report::recover_first() {
  if (!file_exists(path_) || file_size(path_) > kMaxPageBytes) return;
  const std::string page = read_file(path_);
  // Texts of the page have no '<' of their own, so that none of them can be a mark.
  const size_t begin = page.find(kFirstBegins);
  const size_t close = page.find("-->", begin);
  const size_t end = page.find(kFirstEnds);
  if (begin == page.npos || close == page.npos || end == page.npos || end < close) return;
  const size_t digits = begin + kFirstBegins.size();
  int64_t update = 0;
  if (!parse_int(std::string_view(page).substr(digits, close - digits), &update)) return;
  first_update_ = update;
  first_ = page.substr(close + 3, end - close - 3);
}

void Report::take_evaluation(const std::string& set, int64_t update,
                             std::span<const Sample> samples, const PromptOf& prompt_of) {
  if (evaluations_.size() >= kSets && !evaluations_.contains(set)) return;
  evaluations_[set] = shown_samples(update, samples, {}, prompt_of, kEvaluationTokens);
}

bool Report::is_due() const {
  return seconds_since(written_ns_) > std::max(kMinPauseSeconds, write_s_ / kWriteShare);
}

void Report::write(State state, int64_t done, int64_t of) {
  const int64_t begin = now_ns();
  write_file_atomic(path_, html(state, done, of));
  write_s_ = seconds_since(begin);
  written_ns_ = now_ns();
}

void Report::write_failed(int64_t done, int64_t of, const std::string& error) {
  try {
    write_file_atomic(path_, html(State::failed, done, of, error));
  } catch (const Error& failure) {
    log_warning("no report of the failed training: {}", failure.what());
  }
}

/// Sections of the newest step, of evaluations, and of the first step.
std::string Report::samples_html() const {
  std::string body;
  if (!newest_.shown.empty()) {
    body += section_html("newest", fmt::format("Samples before update {}", newest_.update),
                         "Newest samples", legend_html() + to_html(newest_, tokenizer_));
  }
  int64_t number = 0;
  for (const auto& [set, samples] : evaluations_) {
    body += section_html(fmt::format("held-out-{}", number++),
                         visible_html(fmt::format("Held-out samples{}, after update {}",
                                                  set.empty() ? "" : " of " + set, samples.update)),
                         "Held out", to_html(samples, tokenizer_));
  }
  if (first_update_ > 0) {
    body += section_html("first", fmt::format("Samples before update {}", first_update_),
                         "First samples",
                         legend_html() + fmt::format("{}{}-->{}{}\n", kFirstBegins, first_update_,
                                                     first_, kFirstEnds));
  }
  return body;
}

std::string Report::html(State state, int64_t done, int64_t of, const std::string& error) const {
  const MetricTable table = read_metric_table(join_path(run_.config.output.dir, "metrics.jsonl"));
  std::vector<std::string> files;
  for (const data::SourceOptions& source : run_.config.data.sources) {
    files.push_back(file_name(source.path));
  }
  diagnose::HtmlPage page;
  page.title =
      fmt::format("{}: reinforcement learning on {}", run_.model.family, join(files, ", "));
  std::string body =
      fmt::format("<header><h1>{}</h1><p class=\"sub\">{} \u00B7 begun {}, written {}</p>\n",
                  visible_html(page.title), state_text(state, done, of), began_, minute_now());
  if (!error.empty()) {
    body += fmt::format("<pre class=\"no error\">{}</pre>\n",
                        visible_html(without_middle(error, kErrorBytes)));
  }
  body += tiles_html(table, done, of) + facts_html(run_) + "</header>\n";
  body += section_html("curves", "Curves", "Curves", "");
  body += samples_html();
  body += section_html("values", "All metrics", "Metrics", table_html(table));
  body += section_html("logprobs", "What log-probabilities mean", "Log-probabilities",
                       log_probabilities_html(run_.config.rl));
  body += section_html(
      "config", "Configuration", "Configuration",
      fmt::format("<details><summary>run.yaml, resolved</summary><pre tabindex=\"0\">{}</pre>"
                  "</details>\n",
                  visible_html(without_middle(run_.resolved.to_yaml(), kConfigBytes))));
  body += fmt::format(
      "<footer>Made by <code>{}</code>. Hocket {}. This page is one file: it needs no network and "
      "sends nothing.</footer>\n",
      visible_html(without_middle(command_, kErrorBytes)), HOCKET_VERSION);
  page.body = std::move(body);
  page.data = diagnose::safe_in_script(curves_json(table));
  page.style = kReportStyle;
  page.scripts = {kReportScript};
  return diagnose::to_html(page);
}

}  // namespace hocket::rl
