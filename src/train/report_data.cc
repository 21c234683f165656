// SPDX-License-Identifier: Apache-2.0
#include "train/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"

namespace hocket::train {

namespace {

constexpr int64_t kShown = 6;          // sequences; a multiple of two: pairs stay together
constexpr size_t kShownTokens = 1500;  // of each
constexpr const char* kKept = "sample_before.json";

diagnose::DataExample described(data::ShownSequence sequence, const data::Tokenizer& tokenizer) {
  diagnose::DataExample example;
  example.place = sequence.place + (sequence.part.empty() ? "" : ", " + sequence.part);
  example.tokens = std::ssize(sequence.ids);
  example.trained = std::count(sequence.trained.begin(), sequence.trained.end(), true);
  if (sequence.ids.size() > kShownTokens) {
    sequence.ids.resize(kShownTokens);
    sequence.trained.resize(kShownTokens);
  }
  data::for_each_part(sequence, tokenizer, [&](bool trained, const std::string& text) {
    example.parts.emplace_back(trained, text);
  });
  if (const int64_t rest = example.tokens - std::ssize(sequence.ids); rest > 0) {
    example.parts.emplace_back(false, fmt::format(" … ({} more)", counted(rest, "token")));
  }
  return example;
}

}  // namespace

void describe_data(const TrainingData& data, int64_t seq_len, diagnose::ReportData* report) {
  DataView view = data.view(kShown);
  for (data::ShownSequence& sequence : view.shown) {
    report->examples.push_back(described(std::move(sequence), data.tokenizer()));
  }
  const data::Lengths& lengths = view.lengths;
  if (lengths.sorted.empty()) return;
  for (const data::Lengths::Bucket& bucket : lengths.histogram()) {
    report->lengths.push_back({bucket.most, bucket.count});
  }
  report->lengths_text =
      fmt::format("{}, of {} tokens to {}, median {}, 95 % of them up to {}; a row has {}",
                  counted(std::ssize(lengths.sorted), view.noun), lengths.sorted.front(),
                  lengths.sorted.back(), lengths.quantile(0.5), lengths.quantile(0.95), seq_len);
}

void keep_sample(const std::string& folder, const diagnose::Sample& sample) {
  write_file_atomic(join_path(folder, kKept), JsonWriter()
                                                      .object()
                                                      .member("prompt", sample.prompt)
                                                      .member("text", sample.text)
                                                      .member("how", sample.sampling)
                                                      .member("language", sample.language)
                                                      .member("when", sample.when)
                                                      .end()
                                                      .take() +
                                                  "\n");
}

void forget_sample(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove(join_path(folder, kKept), ignored);
}

std::optional<diagnose::Sample> kept_sample(const std::string& folder, const std::string& prompt) {
  const std::string path = join_path(folder, kKept);
  if (!file_exists(path)) return std::nullopt;
  const nlohmann::json json = parse_json(read_file(path), path);
  const JsonView in(json, path);
  diagnose::Sample sample;
  sample.prompt = in.get_string("prompt");
  sample.text = in.get_string("text");
  sample.sampling = in.get_string("how");
  sample.language = in.get_string("language");
  sample.when = in.get_string("when");
  if (sample.prompt != prompt) return std::nullopt;
  return sample;
}

}  // namespace hocket::train
