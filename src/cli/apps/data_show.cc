// SPDX-License-Identifier: Apache-2.0
#include "cli/apps/data_show.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "data/examples/shown.h"

namespace hocket::cli {

using data::ExampleRows;
using data::Lengths;
using data::SetKind;
using data::shown_sequences;
using data::ShownSequence;

namespace {

constexpr const char* kTrainedColour = "\x1b[32m";  // green
constexpr const char* kNoColour = "\x1b[0m";
constexpr const char* kTrainedBegin = "⟦";
constexpr const char* kTrainedEnd = "⟧";
constexpr int kBar = 40;  // width of the histogram's longest bar

const ExampleRows& rows_of(const engine::ExampleData& data, bool valid) {
  const ExampleRows* rows = valid ? data.valid_rows.get() : data.train_rows.get();
  if (rows == nullptr) {
    fail("hocket data show", "no example is {}; expected some (data.valid_fraction, split)",
         valid ? "held out" : "to be trained on");
  }
  return *rows;
}

double share(int64_t part, int64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

/// Share of the places of rows that ids of examples are in.
double efficiency(const ExampleRows& rows) {
  const data::RowReport& report = rows.report();
  return share(report.ids, report.rows * rows.seq_len());
}

/// Times that each source's examples are seen in an epoch of a mixture by weight; else empty.
std::vector<double> source_epochs(const ExampleRows& rows, size_t sources) {
  std::vector<double> out = rows.epochs(rows.sequences_per_epoch());
  const bool once = std::all_of(out.begin(), out.end(), [](double times) { return times == 1; });
  if (once || out.size() != sources) return {};
  return out;
}

std::string sequence_text(const ShownSequence& sequence, const data::Tokenizer& tokenizer,
                          const ShowStyle& style) {
  std::string out;
  data::for_each_part(sequence, tokenizer, [&](bool trained, const std::string& text) {
    const std::string shown = style.terminal ? printable(text) : text;
    if (trained) {
      out += style.colour ? kTrainedColour : kTrainedBegin;
      out += shown;
      out += style.colour ? kNoColour : kTrainedEnd;
    } else {
      out += shown;
    }
  });
  return out;
}

/// Examples that are not in rows, with the reason; {name, for people, number, the first ones}.
struct DroppedRow {
  const char* name;
  const char* text;
  int64_t count;
  std::vector<std::string> first;
};
std::vector<DroppedRow> dropped_rows(const data::RowReport& report) {
  return {{"too_long", "longer than a row", report.too_long, report.first_too_long},
          {"cut_away", "with all trained tokens cut off", report.cut_away, report.first_cut_away},
          {"untrained", "without a trained token", report.untrained, report.first_untrained},
          {"unused", "of sources with weight 0", report.unused, {}}};
}

/// Lines of examples that are named, below the line that counts them.
std::string named_text(const std::vector<std::string>& first, const char* indent) {
  std::string out;
  for (const std::string& line : first) {
    out += fmt::format("{}{}\n", indent, line);
  }
  return out;
}

void put_sequences(JsonWriter& json, const std::vector<ShownSequence>& sequences,
                   const data::Tokenizer& tokenizer) {
  json.array();
  for (const ShownSequence& sequence : sequences) {
    json.object().member("place", sequence.place).member("row", sequence.row);
    if (!sequence.part.empty()) {
      json.member("part", sequence.part);
    }
    json.member("ids", sequence.ids).member("positions", sequence.positions);
    json.key("trained").array();
    for (const bool trained : sequence.trained) {
      json.value(trained ? 1 : 0);
    }
    json.end().key("texts").array();
    for (const int32_t id : sequence.ids) {
      json.value(tokenizer.token_bytes(id));
    }
    json.end().end();
  }
  json.end();
}

std::string source_text(const data::SourceReport& source) {
  const data::ReadReport& read = source.read;
  std::string out = fmt::format("{}: {}, {}{}\n", source.name, counted(read.files, "file"),
                                counted(read.examples, "example"),
                                read.layout.empty() ? "" : " (" + read.layout + ")");
  const auto list = [&](int64_t count, const char* what, const std::vector<std::string>& first) {
    if (count == 0) return;
    out += fmt::format("  {} {}\n", counted(count, "example"), what);
    out += named_text(first, "    ");
  };
  list(read.unreadable, "unreadable", read.first_unreadable);
  list(source.refused, "refused", source.first_refused);
  for (const auto& [column, count] : read.ignored_columns) {
    out += fmt::format("  column {} is not used ({})\n", quote(column), counted(count, "example"));
  }
  if (source.joined > 0) {
    out += fmt::format("  {} with a token of the prompt's end and the answer's beginning\n",
                       counted(source.joined, "example"));
  }
  if (source.with_special_tokens > 0) {
    out += fmt::format("  {} with special tokens in their texts\n",
                       counted(source.with_special_tokens, "example"));
  }
  for (const std::string& text : source.left_out_texts()) {
    out += fmt::format("  warning: {}\n", text);
  }
  return out;
}

}  // namespace

std::string show_text(const engine::ExampleData& data, bool valid, int64_t count,
                      const engine::PreferenceSection& preference, const ShowStyle& style) {
  const ExampleRows& rows = rows_of(data, valid);
  const data::RowReport& report = rows.report();
  std::string out;
  for (const ShownSequence& sequence : shown_sequences(rows, count)) {
    const auto trained = std::count(sequence.trained.begin(), sequence.trained.end(), true);
    out += fmt::format("== {}{}{}: {}, {} trained\n{}\n", sequence.place,
                       sequence.part.empty() ? "" : ", ", sequence.part,
                       counted(std::ssize(sequence.ids), "token"), trained,
                       sequence_text(sequence, *data.tokenizer, style));
  }
  out += out.empty() ? "" : "\n";
  for (const data::SourceReport& source : data.sources) {
    out += source_text(source);
  }
  out += fmt::format("{}: {}, {} tokens, {} trained ({:.1f} %)\n", valid ? "held out" : "training",
                     counted(report.examples, "example"), report.ids, report.targets,
                     100 * share(report.targets, report.ids));
  const std::string labels = engine::labels_text(rows);
  out += labels.empty() ? "" : fmt::format("labels: {}\n", labels);
  const std::string warning = valid ? "" : engine::labels_warning(rows, preference);
  out += warning.empty() ? "" : fmt::format("warning: {}\n", warning);
  if (report.split > 0) {
    out += fmt::format("longer than {} tokens: {}, in {}\n", rows.seq_len(),
                       counted(report.split, "text"), counted(report.parts, "part"));
  }
  out += fmt::format("truncated to {} tokens: {}, which lose {}\n", rows.seq_len(),
                     counted(report.truncated, "example"), counted(report.lost_ids, "token"));
  out += named_text(report.first_truncated, "  ");
  for (const DroppedRow& dropped : dropped_rows(report)) {
    if (dropped.count > 0) {
      out += fmt::format("left out: {} {}\n", counted(dropped.count, "example"), dropped.text);
      out += named_text(dropped.first, "  ");
    }
  }
  const Lengths lengths(rows.examples());
  out += fmt::format("lengths: min {}, median {}, p95 {}, max {}\n", lengths.sorted.front(),
                     lengths.quantile(0.5), lengths.quantile(0.95), lengths.sorted.back());
  const std::vector<Lengths::Bucket> buckets = lengths.histogram();
  int64_t most = 1;
  for (const Lengths::Bucket& bucket : buckets) {
    most = std::max(most, bucket.count);
  }
  for (const Lengths::Bucket& bucket : buckets) {
    const auto bar = static_cast<size_t>(std::ceil(kBar * share(bucket.count, most)));
    out += fmt::format("  up to {:>7} {:<{}} {}\n", bucket.most, std::string(bar, '#'), kBar,
                       bucket.count);
  }
  out += fmt::format("rows of {}: {}, {:.1f} % of their places filled\n", rows.seq_len(),
                     report.rows, 100 * efficiency(rows));
  const std::vector<double> epochs = source_epochs(rows, data.sources.size());
  for (size_t i = 0; i < epochs.size(); ++i) {
    out += fmt::format("  in as many rows each example of {} is seen {:.3g} times\n",
                       data.sources[i].name, epochs[i]);
  }
  return out;
}

std::string show_json(const engine::ExampleData& data, bool valid, int64_t count,
                      const engine::PreferenceSection& preference) {
  const ExampleRows& rows = rows_of(data, valid);
  const data::RowReport& report = rows.report();
  JsonWriter json;
  json.object().member("split", valid ? "valid" : "train");
  const std::vector<double> epochs = source_epochs(rows, data.sources.size());
  json.key("sources").array();
  for (size_t i = 0; i < data.sources.size(); ++i) {
    const data::SourceReport& source = data.sources[i];
    json.object().member("name", source.name);
    if (!epochs.empty()) {
      json.member("epochs", epochs[i]);
    }
    source.read.put(json);
    json.member("refused", source.refused)
        .member("first_refused", source.first_refused)
        .member("joined", source.joined)
        .member("with_special_tokens", source.with_special_tokens);
    json.key("left_out_by_template").object();
    for (const auto& [what, of] : source.left_out_by_template) {
      json.key(what).object().member("examples", of.examples).member("first", of.first).end();
    }
    json.end().end();
  }
  json.end();
  json.member("examples", report.examples)
      .member("tokens", report.ids)
      .member("trained_tokens", report.targets)
      .member("trained_share", share(report.targets, report.ids))
      .member("seq_len", rows.seq_len())
      .member("split_texts", report.split)
      .member("split_parts", report.parts)
      .member("truncated", report.truncated)
      .member("first_truncated", report.first_truncated)
      .member("lost_tokens", report.lost_ids);
  if (rows.examples().kind() == SetKind::unpaired) {
    json.key("labels")
        .object()
        .member("desirable", report.desirable)
        .member("undesirable", report.examples - report.desirable)
        .member("warning", valid ? "" : engine::labels_warning(rows, preference))
        .end();
  }
  json.key("dropped").object();
  for (const DroppedRow& dropped : dropped_rows(report)) {
    json.member(dropped.name, dropped.count);
  }
  json.end().key("first_dropped").object();
  for (const DroppedRow& dropped : dropped_rows(report)) {
    json.member(dropped.name, dropped.first);
  }
  json.end();
  const Lengths lengths(rows.examples());
  json.key("lengths")
      .object()
      .member("min", lengths.sorted.front())
      .member("median", lengths.quantile(0.5))
      .member("p95", lengths.quantile(0.95))
      .member("max", lengths.sorted.back())
      .key("histogram")
      .array();
  for (const Lengths::Bucket& bucket : lengths.histogram()) {
    json.object().member("most", bucket.most).member("examples", bucket.count).end();
  }
  json.end().end();
  json.member("rows", report.rows).member("efficiency", efficiency(rows));
  put_sequences(json.key("shown"), shown_sequences(rows, count), *data.tokenizer);
  if (rows.examples().kind() == SetKind::unpaired && report.examples > 1) {
    put_sequences(json.key("mismatched"), shown_sequences(*rows.mismatched(), count),
                  *data.tokenizer);
  }
  json.end();
  return json.take() + "\n";
}

}  // namespace hocket::cli
