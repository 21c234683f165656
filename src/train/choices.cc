// SPDX-License-Identifier: Apache-2.0
#include "train/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "data/examples/records.h"
#include "train/evaluate.h"

namespace hocket::train {

namespace {

using nlohmann::json;

/// Returns the first of the keys that the object has; null: none.
const json* find_any(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (const auto found = object.find(key); found != object.end()) return &*found;
  }
  return nullptr;
}

std::vector<std::string> strings_of(const json* list, const std::string& place, const char* what) {
  std::vector<std::string> strings;
  if (list && list->is_array()) {
    for (const json& each : *list) {
      if (!each.is_string()) break;
      strings.push_back(each.get<std::string>());
    }
  }
  if (!list || strings.size() != list->size() || strings.size() < 2) {
    fail(place, "{} is {}; expected a list of two strings or more", what,
         list ? list->dump().substr(0, 60) : "missing");
  }
  return strings;
}

/// Returns the index of the right choice: a number from 0, a label, or a letter.
size_t answer_of(const json& answer, const std::vector<std::string>& labels, size_t choices,
                 const std::string& place) {
  std::optional<size_t> index;
  if (answer.is_number_integer()) {
    const auto number = answer.get<int64_t>();
    if (number >= 0 && number < static_cast<int64_t>(choices)) {
      index = static_cast<size_t>(number);
    }
  } else if (answer.is_string()) {
    const auto text = answer.get<std::string>();
    const auto label = std::find(labels.begin(), labels.end(), text);
    if (label != labels.end()) {
      index = static_cast<size_t>(label - labels.begin());
    } else if (labels.empty() && text.size() == 1) {
      const int from = text[0] >= '0' && text[0] <= '9' ? '0' : 'A';
      if (const int number = text[0] - from; number >= 0 && number < static_cast<int>(choices)) {
        index = static_cast<size_t>(number);
      }
    }
  }
  if (!index) {
    fail(place,
         "the answer is {}; expected the index of one of {} choices, its letter or its label",
         answer.dump().substr(0, 60), choices);
  }
  return *index;
}

ChoiceQuestion parse_question(const std::string& line, const std::string& place) {
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) fail(place, "is no JSON object; expected a question a line");
  ChoiceQuestion question;
  question.place = place;
  const json* const text = find_any(object, {"question", "query", "prompt", "ctx", "goal"});
  if (!text || !text->is_string()) {
    fail(place, "has no question; expected a string named question, query, prompt, ctx or goal");
  }
  question.question = text->get<std::string>();
  const json* choices = find_any(object, {"choices", "endings", "options"});
  std::vector<std::string> labels;
  if (choices && choices->is_object()) {
    labels = strings_of(find_any(*choices, {"label"}), place, "choices.label");
    choices = find_any(*choices, {"text"});
  }
  question.choices = strings_of(choices, place, "choices");
  if (!labels.empty() && labels.size() != question.choices.size()) {
    fail(place, "{} labels for {} choices; expected one each", labels.size(),
         question.choices.size());
  }
  const json* const answer = find_any(object, {"answer", "label", "gold", "answerKey"});
  if (!answer) fail(place, "has no answer; expected answer, label, gold or answerKey");
  question.answer = answer_of(*answer, labels, question.choices.size(), place);
  return question;
}

int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

size_t largest(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

std::vector<ChoiceQuestion> read_questions(const std::string& path) {
  constexpr int64_t kMaxBytes = 32 << 20;  // of a question
  data::RecordReader records(data::open_bytes(path), path, data::RecordReader::Form::lines,
                             kMaxBytes);
  std::vector<ChoiceQuestion> questions;
  for (data::Record record; records.next(&record);) {
    const std::string place = fmt::format("{}:{}", path, record.line);
    if (record.too_long) fail(place, "is longer than {}", human_bytes(kMaxBytes));
    questions.push_back(parse_question(record.text, place));
  }
  if (questions.empty()) fail(path, "has no question; expected a JSON object a line");
  return questions;
}

ChoiceTokens tokens_of(const ChoiceQuestion& question, const data::Tokenizer& tokenizer,
                       const std::vector<int32_t>& beginning) {
  const size_t last = question.question.find_last_not_of(" \t\n\r");
  const std::string asked = question.question.substr(0, last == std::string::npos ? 0 : last + 1);
  const std::string blank = question.question.substr(asked.size());
  const size_t before = beginning.size() + tokenizer.encode(asked).size();
  ChoiceTokens tokens;
  for (const std::string& choice : question.choices) {
    std::vector<int32_t> ids = beginning;
    const std::vector<int32_t> text =
        tokenizer.encode(asked + (blank.empty() ? " " : blank) + choice);
    ids.insert(ids.end(), text.begin(), text.end());
    // Without a token before it, a choice's first one is not predicted.
    const size_t begin = std::max<size_t>(before, 1);
    if (ids.size() <= begin) {
      fail(question.place, "the choice {} has no token of its own behind the question",
           quote(choice));
    }
    tokens.ids.push_back(std::move(ids));
    tokens.begin.push_back(begin);
  }
  return tokens;
}

double ChoiceScores::error() const {
  if (questions < 2) return 0;
  const double p = accuracy();
  return std::sqrt(p * (1 - p) / static_cast<double>(questions - 1));
}

ChoiceScores score(const engine::Run& run, const std::vector<ChoiceQuestion>& questions,
                   const std::vector<ChoiceTokens>& tokens, engine::Programs& programs,
                   const std::function<void(size_t question, const ChoiceResult& result)>& take) {
  // All choices of all questions are lists of one run, shortest and longest alike.
  std::vector<std::vector<int32_t>> lists;
  std::vector<std::pair<size_t, size_t>> of;  // question and choice of a list
  for (size_t q = 0; q < tokens.size(); ++q) {
    for (size_t c = 0; c < tokens[q].ids.size(); ++c) {
      lists.push_back(tokens[q].ids[c]);
      of.emplace_back(q, c);
    }
  }
  ChoiceScores scores;
  ChoiceResult result;
  for_each_logprobs(run, lists, programs, [&](size_t list, std::span<const double> logprobs) {
    const auto [q, c] = of[list];
    double sum = 0;
    for (size_t t = tokens[q].begin[c] - 1; t < logprobs.size(); ++t) {
      sum += logprobs[t];
    }
    if (std::isnan(sum)) {
      fail_run(questions[q].place,
               "the log-probability of choice {} is no number: the model's values are not finite",
               c + 1);
    }
    result.logprobs.push_back(sum);
    if (c + 1 < tokens[q].ids.size()) return;
    std::vector<double> normed = result.logprobs;
    for (size_t i = 0; i < normed.size(); ++i) {
      normed[i] /= static_cast<double>(std::max<int64_t>(1, characters(questions[q].choices[i])));
    }
    result.chosen = largest(result.logprobs);
    result.chosen_normed = largest(normed);
    ++scores.questions;
    scores.right += result.chosen == questions[q].answer ? 1 : 0;
    scores.right_normed += result.chosen_normed == questions[q].answer ? 1 : 0;
    take(q, result);
    result = {};
  });
  return scores;
}

}  // namespace hocket::train
