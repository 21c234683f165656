// SPDX-License-Identifier: Apache-2.0
#include "engine/example_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/model_template.h"
#include "data/model_text.h"
#include "gguf/file.h"

namespace hocket::engine {
namespace {

/// The model's own tokenizer, else the one that the section names.
data::Tokenizer tokenizer_of(const DataSection& section, const ExampleDataOptions& options) {
  const bool has_own =
      gguf::is_gguf(options.model) || file_exists(join_path(options.model, "tokenizer.json"));
  const std::string& named = section.tokenizer;
  if (!has_own && named.empty()) {
    fail(options.where, "{} has no tokenizer.json; expected one there, or data.tokenizer",
         options.model);
  }
  if (!has_own && !file_exists(named)) {
    fail(options.where, "data.tokenizer {} is not there; expected a tokenizer.json or its folder",
         named);
  }
  if (has_own && !named.empty() && named != options.model) {
    data::require_tokenizer_of(options.model, data::Tokenizer::load(named), named,
                               "leave data.tokenizer out");
  }
  data::Tokenizer tokenizer = data::Tokenizer::load(has_own ? options.model : named);
  if (options.vocabulary > 0 && tokenizer.vocab_size() > options.vocabulary) {
    fail(options.where, "the tokenizer of {} has {} tokens; expected at most the model's {}",
         has_own ? options.model : named, tokenizer.vocab_size(), options.vocabulary);
  }
  return tokenizer;
}

}  // namespace

ExampleData read_example_data(const DataSection& section, const ExampleDataOptions& options) {
  ExampleData out;
  out.tokenizer = std::make_shared<data::Tokenizer>(tokenizer_of(section, options));
  const std::optional<data::ChatTemplate> chat =
      checkpoint::find_template(options.model, "", section.chat_template, "data.chat_template")
          .chat_template;
  const auto is_left_out = [](const data::SourceOptions& source) {
    return source.split == "valid" || source.weight == 0.0;
  };
  const auto trains = [](const data::SourceOptions& source) { return source.split != "valid"; };
  if (std::any_of(section.sources.begin(), section.sources.end(), trains) &&
      std::all_of(section.sources.begin(), section.sources.end(), is_left_out)) {
    fail(options.where, "data.sources have weight 0 each; expected one above 0 to train on");
  }
  data::ExampleSetOptions set;
  set.sources = section.sources;
  for (data::SourceOptions& source : set.sources) {
    // One that is left out holds nothing out, either.
    if (source.weight == 0.0 && source.split == "auto") {
      source.split = "train";
    }
  }
  set.valid_fraction = section.valid_fraction;
  set.render.train_on = section.train_on;
  set.render.split_special_tokens = section.split_special_tokens;
  set.render.beginning = data::beginning_of_text(options.model, *out.tokenizer);
  set.unpair = options.unpair;
  set.limit = options.limit;
  set.progress = options.progress;
  data::ExampleSet read = data::read_examples(*out.tokenizer, chat ? &*chat : nullptr, set);
  out.sources = std::move(read.sources);
  out.train = std::make_shared<data::TokenExamples>(std::move(read.train));
  out.valid = std::make_shared<data::TokenExamples>(std::move(read.valid));
  data::RowOptions rows;
  rows.seq_len = options.seq_len;
  rows.packing = section.packing;
  rows.truncate = section.truncate;
  rows.split_texts = section.split_texts;
  rows.most_examples = options.most_examples;
  rows.seed = options.seed;
  rows.pad = std::max(out.tokenizer->eos_id(), 0);
  if (out.valid->size() > 0) {
    data::RowOptions in_order = rows;
    in_order.shuffle = false;
    try {
      out.valid_rows = std::make_unique<data::ExampleRows>(out.valid, in_order);
    } catch (const Error& error) {
      throw error.with("these are the examples held out");
    }
  }
  const auto weighs = [](const data::SourceOptions& source) {
    return source.split != "valid" && source.weight;
  };
  const bool weighted = std::any_of(section.sources.begin(), section.sources.end(), weighs);
  for (const data::SourceOptions& source : section.sources) {
    // One that is held out has no part in the mixture.
    rows.weights.push_back(weighted && source.split == "valid" ? 0 : source.weight);
  }
  if (out.train->size() > 0) {
    out.train_rows = std::make_unique<data::ExampleRows>(out.train, rows);
  }
  return out;
}

std::string labels_text(const data::ExampleRows& rows) {
  if (rows.examples().kind() != data::SetKind::unpaired) return "";
  const data::RowReport& report = rows.report();
  return fmt::format("{} desirable, {} undesirable", report.desirable,
                     report.examples - report.desirable);
}

std::string labels_warning(const data::ExampleRows& rows, const PreferenceSection& preference) {
  if (rows.examples().kind() != data::SetKind::unpaired) return "";
  const int64_t desirable = rows.report().desirable;
  const int64_t undesirable = rows.report().examples - desirable;
  if (desirable == 0 || undesirable == 0) {
    return fmt::format("no example is {}; KTO learns from both kinds; expected some with label: {}",
                       desirable == 0 ? "desirable" : "undesirable",
                       desirable == 0 ? "true" : "false");
  }
  if (desirable == undesirable) return "";
  // Ethayarajh et al., ICML 2024, eq. 8, with the rounding of TRL, which warns likewise.
  constexpr double kMostRatio = 1.33;
  const auto rounded = [](double weight) { return std::round(weight * 100) / 100; };
  const double ratio = static_cast<double>(desirable) / static_cast<double>(undesirable);
  struct Range {
    double least, most;
    bool has(double weight) const { return least <= weight && weight <= most; }
  };
  const double for_desirable = preference.undesirable_weight / ratio;
  const double for_undesirable = preference.desirable_weight * ratio;
  const Range of_desirable = {rounded(for_desirable), rounded(for_desirable * kMostRatio)};
  const Range of_undesirable = {rounded(for_undesirable / kMostRatio), rounded(for_undesirable)};
  if (of_desirable.has(preference.desirable_weight) ||
      of_undesirable.has(preference.undesirable_weight)) {
    return "";
  }
  return fmt::format(
      "{} desirable examples of weight {} and {} undesirable ones of weight {} are out of balance; "
      "expected a preference.desirable_weight of {} to {}, or a preference.undesirable_weight of "
      "{} to {}",
      desirable, preference.desirable_weight, undesirable, preference.undesirable_weight,
      of_desirable.least, of_desirable.most, of_undesirable.least, of_undesirable.most);
}

std::string ExampleData::fingerprint() const {
  Hasher hasher;
  for (const auto& rows : {train_rows.get(), valid_rows.get()}) {
    if (rows != nullptr) {
      const Hash128 hash = rows->hash();
      hasher.add(hash.high).add(hash.low);
    }
  }
  return hasher.finish().hex();
}

}  // namespace hocket::engine
