// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/journal.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"

namespace hocket::serve {

namespace {

constexpr int64_t kJournalVersion = 1;

std::string job_line(const BatchJob& job) {
  JsonWriter json;
  json.object().member("event", "job").member("version", kJournalVersion);
  json.member("input", job.input).member("rows", job.rows).member("bytes", job.bytes);
  json.member("hash", job.hash).member("settings", job.settings).end();
  return json.take();
}

std::string part_line(const BatchPart& part) {
  JsonWriter json;
  json.object().member("event", "part").member("first", part.rows.first);
  json.member("rows", part.rows.count).member("file", part.file);
  json.member("at", part.at).member("bytes", part.bytes);
  json.member("hash", part.hash).member("outputs", part.outputs).member("errors", part.errors);
  json.member("blanks", part.blanks).member("prompt_tokens", part.prompt_tokens);
  json.member("tokens", part.tokens).end();
  return json.take();
}

BatchPart part_of(const JsonView& json, int64_t rows) {
  BatchPart part;
  part.rows = {json.get_int("first"), json.get_int("rows")};
  if (part.rows.first < 0 || part.rows.count <= 0 || part.rows.first > rows ||
      part.rows.count > rows - part.rows.first) {
    json.fail(
        fmt::format("has rows {} + {}; the input has {}", part.rows.first, part.rows.count, rows));
  }
  part.file = json.get_string("file");
  if (part.file.empty() || part.file.find('/') != std::string::npos) {
    json.fail("names no file of the folder of parts");
  }
  part.at = json.get_int("at");
  part.bytes = json.get_int("bytes");
  if (part.at < 0 || part.bytes < 0) {
    json.fail("names no piece of a file");
  }
  part.hash = json.get_string("hash");
  part.outputs = json.get_int("outputs");
  part.errors = json.get_int("errors");
  part.blanks = json.get_int("blanks");
  part.prompt_tokens = json.get_int("prompt_tokens");
  part.tokens = json.get_int("tokens");
  return part;
}

void take_event(const JsonView& json, BatchHistory* history) {
  const std::string event = json.get_string("event");
  if (event == "job") {
    if (json.get_int("version") != kJournalVersion) {
      json.fail(
          fmt::format("is of version {}; expected {}", json.get_int("version"), kJournalVersion));
    }
    history->job = {json.get_string("input"), json.get_int("rows"), json.get_int("bytes"),
                    json.get_string("hash"), json.get_string("settings")};
  } else if (event == "start") {
    history->epoch = json.get_int("epoch");
    history->port = static_cast<int>(json.get_int("port"));
    history->key = json.get_string("key");
  } else if (event == "part") {
    history->parts.push_back(part_of(json, history->job.rows));
  } else if (event == "merged") {
    history->is_merged = true;
  } else {
    json.fail("has the event " + quote(event) + ", which this version does not know");
  }
}

/// Reads complete lines; returns their bytes.
int64_t read_journal(const std::string& path, BatchHistory* history) {
  const std::string text = read_file(path);
  size_t at = 0;
  int64_t number = 0;
  for (size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string where = fmt::format("{}:{}", path, ++number);
    const nlohmann::json json = parse_json(std::string_view(text).substr(at, end - at), where);
    const JsonView view(json, where);
    if ((number == 1) != (view.get_string("event") == "job")) {
      fail(where, "is out of place; a journal begins with its job");
    }
    take_event(view, history);
  }
  if (at < text.size()) {
    log_warning("{}: the last line is incomplete, as after a crash; it does not count", path);
  }
  return static_cast<int64_t>(at);
}

/// Returns the members of `settings` that `other` has not, as JSON; all of them where one is no
/// object.
std::string difference(const std::string& settings, const std::string& other) {
  const auto mine = nlohmann::ordered_json::parse(settings, nullptr, /*allow_exceptions=*/false);
  const auto others = nlohmann::ordered_json::parse(other, nullptr, /*allow_exceptions=*/false);
  if (!mine.is_object() || !others.is_object()) return settings;
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [key, value] : mine.items()) {
    if (!others.contains(key) || others[key] != value) {
      out[key] = value;
    }
  }
  return out.dump();
}

void require_same_job(const std::string& folder, const BatchJob& had, const BatchJob& job) {
  const char* advice = "take another folder, or remove this one to begin anew";
  if (had.hash != job.hash || had.rows != job.rows || had.bytes != job.bytes) {
    fail(folder,
         "holds the job of another input: {} with {} rows, {} bytes; got {} with {}, {}; {}",
         had.input, had.rows, had.bytes, job.input, job.rows, job.bytes, advice);
  }
  if (had.settings != job.settings) {
    fail(folder, "holds a job with other settings: {}; got {}; {}",
         difference(had.settings, job.settings), difference(job.settings, had.settings), advice);
  }
}

}  // namespace

std::string BatchJournal::path(const std::string& folder) {
  return join_path(folder, "journal.jsonl");
}

BatchJournal::BatchJournal(const std::string& folder, const BatchJob& job) {
  const std::string path = BatchJournal::path(folder);
  int64_t bytes = 0;
  if (file_exists(path)) {
    bytes = read_journal(path, &history_);
  }
  if (bytes == 0) {
    history_ = {};
    history_.job = job;
    write_file_atomic(path, job_line(job) + "\n");
  } else {
    require_same_job(folder, history_.job, job);
    if (bytes < file_size(path)) {
      FileWriter cut(path, FileWriter::Mode::within);
      cut.set_size(bytes);
      cut.sync();
      cut.close();
    }
  }
  file_ = std::make_unique<FileWriter>(path, FileWriter::Mode::append);
}

void BatchJournal::append(const std::string& line) {
  file_->write(line + "\n");
  file_->sync();
}

void BatchJournal::start(int port, const std::string& key) {
  history_.port = port;
  history_.key = key;
  ++history_.epoch;
  JsonWriter json;
  json.object().member("event", "start").member("epoch", history_.epoch);
  json.member("port", port).member("key", key).end();
  append(json.take());
}

void BatchJournal::add(const std::vector<BatchPart>& parts) {
  std::string lines;
  for (const BatchPart& part : parts) {
    lines += (lines.empty() ? "" : "\n") + part_line(part);
    history_.parts.push_back(part);
  }
  append(lines);
}

void BatchJournal::merged() {
  append(R"({"event":"merged"})");
  history_.is_merged = true;
}

}  // namespace hocket::serve
