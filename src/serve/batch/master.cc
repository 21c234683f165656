// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/master.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "base/log.h"
#include "base/text.h"
#include "serve/batch/batch_socket.h"
#include "serve/batch/custom_ids.h"
#include "serve/batch/input_rows.h"
#include "serve/batch/journal.h"
#include "serve/batch/merge.h"
#include "serve/batch/row_result.h"

namespace hocket::serve {

namespace {

constexpr int kBatchPollMs = 20;
constexpr double kProgressIntervalS = 0.2;
constexpr int kRetryMs = 100;     ///< after which a worker without work asks again
constexpr double kFarewellS = 2;  ///< time for workers to hear that the job is finished
/// Connections that send more than this before their hello are no workers.
constexpr int64_t kMaxBytesBeforeHello = 1 << 16;
/// A worker with more unsent messages reads too slowly, and gets no rows meanwhile.
constexpr int64_t kMaxQueuedBytes = int64_t{64} << 20;

std::string random_key() {
  std::string bytes(16, '\0');
  HOCKET_CHECK(::getentropy(bytes.data(), bytes.size()) == 0, "getentropy");
  return hash128(bytes).hex();
}

struct Member {
  explicit Member(BatchSocket s, double now) : socket(std::move(s)), heard(now) {}
  BatchSocket socket;
  double heard;         ///< when it last said something
  int64_t worker = -1;  ///< number in the table; -1: it has not said hello
  std::string name;
  bool ends = false;       ///< to be closed once its messages are written
  bool is_broken = false;  ///< nothing can be written
};

class Master {
 public:
  explicit Master(const BatchMasterOptions& options);
  BatchSummary run();

 private:
  double now() const { return seconds_since(start_); }
  void restore();
  void warn_of_repeated_ids() const;
  void serve();
  void step();
  void expire();
  void read(Member* member);
  void take(Member* member, BatchMessage message);
  void greet(Member* member, const BatchMessage& hello);
  void give_shard(Member* member);
  void take_result(Member* member, const BatchMessage& message);
  void commit(const std::vector<RowResult>& results, RowRange range);
  void write_results();
  void add_to_summary(const BatchPart& part);
  void give_up_rows();
  void disconnect(Member* member, bool lost, const std::string& reason);
  void send_farewell();
  void show(bool now_please);
  std::string state() const;

  const BatchMasterOptions& options_;
  const int64_t start_ = now_ns();
  std::string parts_folder_;
  std::optional<FolderLock> lock_;
  std::optional<InputRows> input_;
  std::unique_ptr<BatchJournal> journal_;
  std::unique_ptr<ShardTable> table_;
  std::unique_ptr<BatchListener> listener_;
  std::list<Member> members_;
  std::string key_;
  std::unique_ptr<FileWriter> results_;  ///< of this master
  int64_t results_bytes_ = 0;
  std::string new_results_;           ///< of this step, not written
  std::vector<BatchPart> new_parts_;  ///< likewise
  std::vector<std::pair<Member*, RowRange>> to_confirm_;
  BatchSummary summary_;
  double shown_at_ = -1;
};

Master::Master(const BatchMasterOptions& options)
    : options_(options), parts_folder_(join_path(options.folder, "parts")) {
  make_dirs(options.folder);
  lock_.emplace(options.folder, "running this job", "stop it first");
  input_.emplace(options.input);
  const BatchJob job{options.input, input_->rows(), input_->bytes(), input_->hash().hex(),
                     options.settings};
  journal_ = std::make_unique<BatchJournal>(options.folder, job);
  table_ = std::make_unique<ShardTable>(input_->rows(), options.shards);
  restore();
}

/// Takes the journal's rows for done, and removes files that no event names.
void Master::restore() {
  make_dirs(parts_folder_);
  std::vector<std::string> named;
  for (const BatchPart& part : journal_->history().parts) {
    const int64_t before = table_->done();
    table_->restore(part.rows);
    if (table_->done() - before != part.rows.count) {
      fail_run(BatchJournal::path(options_.folder), "has row {} or one of the {} behind it twice",
               part.rows.first, part.rows.count);
    }
    named.push_back(part.file);
    add_to_summary(part);
  }
  summary_.rows = table_->rows();
  summary_.restored = table_->done();
  summary_.restored_tokens = summary_.tokens;
  std::sort(named.begin(), named.end());
  for (const std::string& name : list_dir(parts_folder_)) {
    if (!std::binary_search(named.begin(), named.end(), name)) {
      remove_file(join_path(parts_folder_, name));
    }
  }
}

BatchSummary Master::run() {
  const BatchHistory& history = journal_->history();
  if (history.is_merged) {
    if (!file_exists(join_path(options_.folder, "output.jsonl"))) {
      fail(options_.folder,
           "has a job that was finished, but no output.jsonl; remove the folder to begin anew");
    }
    summary_.is_complete = summary_.was_complete = true;
    if (!options_.keep_parts) {
      remove_tree(parts_folder_);
    }
    return summary_;
  }
  if (!table_->is_complete()) {
    warn_of_repeated_ids();
    serve();
  }
  input_->require_unchanged();
  if (table_->is_complete()) {
    show(true);
    merge_batch(history.parts, parts_folder_, options_.folder, table_->rows());
    journal_->merged();
    summary_.is_complete = true;
    if (!options_.keep_parts) {
      remove_tree(parts_folder_);
    }
  }
  summary_.seconds = now();
  return summary_;
}

void Master::warn_of_repeated_ids() const {
  const RepeatedIds repeated = find_repeated_ids(*input_, options_.most_row_bytes);
  if (repeated.rows == 0) return;
  log_warning("{}: {} a custom_id that an earlier row has; the first one is {}, in line {}",
              options_.input,
              repeated.rows == 1 ? "a row has" : fmt::format("{} rows have", repeated.rows),
              quote(repeated.id, 80), repeated.first + 1);
}

void Master::serve() {
  const BatchHistory& history = journal_->history();
  key_ = !options_.key.empty() ? options_.key : !history.key.empty() ? history.key : random_key();
  // Workers of the last master look for it where it was.
  if (options_.port == 0 && history.port != 0) {
    try {
      listener_ = std::make_unique<BatchListener>(options_.host, history.port);
    } catch (const Error& error) {
      log_warning("{}; taking another port", error.what());
    }
  }
  if (!listener_) {
    listener_ = std::make_unique<BatchListener>(options_.host, options_.port);
  }
  journal_->start(listener_->port(), key_);
  if (options_.on_listen) {
    options_.on_listen(listener_->port(), key_);
  }
  while (!table_->is_complete() && !(options_.stop && options_.stop())) {
    step();
    show(false);
    if (options_.tend) {
      options_.tend(table_->done());
    }
  }
  send_farewell();
}

/// Waits for messages, takes them, and answers.
void Master::step() {
  std::vector<pollfd> waiting = {{listener_->fd(), POLLIN, 0}};
  for (const Member& member : members_) {
    const bool writes = member.socket.wants_to_write();
    waiting.push_back({member.socket.fd(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
  }
  ::poll(waiting.data(), waiting.size(), kBatchPollMs);
  size_t at = 0;
  for (Member& member : members_) {
    if ((waiting[++at].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      read(&member);
    }
    if (!member.ends && now() - member.heard > options_.silence_s) {
      disconnect(&member, true, fmt::format("said nothing for {} s", options_.silence_s));
    }
  }
  expire();
  write_results();
  for (auto member = members_.begin(); member != members_.end();) {
    if (!member->is_broken && !member->socket.write_some()) {
      member->is_broken = true;
      disconnect(&*member, true, "is gone");
    }
    const bool closes = member->is_broken || (member->ends && !member->socket.wants_to_write());
    member = closes ? members_.erase(member) : std::next(member);
  }
  while (std::optional<BatchSocket> socket = listener_->accept()) {
    members_.emplace_back(std::move(*socket), now());
  }
}

/// Takes rows from workers that finish none, and gives up those that end their workers.
void Master::expire() {
  for (const int64_t worker : table_->expire(now())) {
    for (Member& member : members_) {
      if (member.worker == worker) {
        member.worker = -1;
        disconnect(&member, true,
                   fmt::format("finished no row for {} s", options_.shards.lease_timeout_s));
      }
    }
  }
  give_up_rows();
}

void Master::read(Member* member) {
  const bool is_open = member->socket.read_some();
  try {
    while (!member->ends) {
      std::optional<BatchMessage> message = member->socket.next();
      if (!message) break;
      member->heard = now();
      take(member, std::move(*message));
    }
    if (member->worker < 0 && member->socket.buffered() > kMaxBytesBeforeHello) {
      fail_run("batch", "it sends without a hello");
    }
  } catch (const Error& error) {
    disconnect(member, true, fmt::format("sent a wrong message: {}", error.what()));
    return;
  }
  if (!is_open) {
    disconnect(member, true, "is gone");
    member->is_broken = true;
  }
}

void Master::disconnect(Member* member, bool lost, const std::string& reason) {
  if (member->ends) return;
  member->ends = true;
  if (member->worker >= 0) {
    table_->remove_worker(member->worker, lost);
  }
  if (lost && !member->name.empty()) {
    log_warning("batch: worker {} {}; its rows are given to others", member->name, reason);
  }
  member->worker = -1;
}

void Master::take(Member* member, BatchMessage message) {
  if (member->worker < 0) {
    if (message.type != "hello" && message.type != "ask") {
      fail_run("batch", "it begins with {}", quote(message.type));
    }
    return greet(member, message);
  }
  if (message.type == "want") {
    give_shard(member);
  } else if (message.type == "beat") {
    table_->progress(member->worker, message.count, now());
  } else if (message.type == "hold") {
    table_->adopt(member->worker, {message.first, message.rows}, now());
  } else if (message.type == "result") {
    take_result(member, message);
  } else if (message.type == "bye") {
    disconnect(member, false, "");
  } else {
    fail_run("batch", "it is {}", quote(message.type));
  }
}

void Master::greet(Member* member, const BatchMessage& hello) {
  if (hello.key != key_) {
    member->socket.queue({.type = "refused", .text = "the key is not that of this job"});
    member->ends = true;
    return;
  }
  if (hello.type == "hello") {
    member->worker = table_->add_worker(hello.count, now());
    member->name = printable(hello.name);
  }
  member->socket.queue({.type = "welcome", .text = options_.settings});
}

void Master::give_shard(Member* member) {
  if (member->socket.queued() > kMaxQueuedBytes) {
    member->socket.queue({.type = "wait", .count = kRetryMs});
    return;
  }
  const std::optional<RowRange> range = table_->lease(member->worker, now());
  if (!range) {
    member->socket.queue({.type = "wait", .count = kRetryMs});
    return;
  }
  const std::vector<InputRow> rows =
      input_->read(range->first, range->count, options_.most_shard_bytes, options_.most_row_bytes);
  if (std::ssize(rows) < range->count) {
    table_->shrink(member->worker, *range, std::ssize(rows));
  }
  BatchMessage message{.type = "shard", .first = range->first, .rows = std::ssize(rows)};
  for (const InputRow& row : rows) {
    append_row(row, &message.body);
  }
  member->socket.queue(message);
}

/// Takes a result, and answers when its rows are on the disk.
void Master::take_result(Member* member, const BatchMessage& message) {
  const RowRange range{message.first, message.rows};
  if (range.first < 0 || range.count <= 0 || range.first > table_->rows() ||
      range.count > table_->rows() - range.first) {
    fail_run("batch", "a result has rows {} + {}", range.first, range.count);
  }
  std::vector<RowResult> results = parse_results(message.body, "a worker's result");
  std::sort(results.begin(), results.end(),
            [](const RowResult& a, const RowResult& b) { return a.row < b.row; });
  bool is_whole = std::ssize(results) == range.count;
  for (size_t i = 0; is_whole && i < results.size(); ++i) {
    is_whole = results[i].row == range.first + static_cast<int64_t>(i);
  }
  if (!is_whole) fail_run("batch", "a result of rows {} + {} lacks some", range.first, range.count);
  for (const RowRange& fresh : table_->take_result(member->worker, range, now())) {
    commit(results, fresh);
  }
  to_confirm_.emplace_back(member, range);
}

/// Takes rows as done; write_results() writes them before anybody hears of it.
void Master::commit(const std::vector<RowResult>& results, RowRange range) {
  BatchPart part;
  part.rows = range;
  part.file = fmt::format("results-{}", journal_->history().epoch);
  part.at = results_bytes_ + std::ssize(new_results_);
  const size_t begin = new_results_.size();
  for (const RowResult& result : results) {
    if (result.row < range.first || result.row >= range.first + range.count) continue;
    append_result(result, &new_results_);
    part.outputs += result.kind == RowResult::Kind::output ? 1 : 0;
    part.errors += result.kind == RowResult::Kind::error ? 1 : 0;
    part.blanks += result.kind == RowResult::Kind::blank ? 1 : 0;
    part.prompt_tokens += result.prompt_tokens;
    part.tokens += result.tokens;
  }
  part.bytes = std::ssize(new_results_) - static_cast<int64_t>(begin);
  part.hash = hash128(std::string_view(new_results_).substr(begin)).hex();
  table_->commit(range);
  add_to_summary(part);
  new_parts_.push_back(std::move(part));
}

/// Writes the results that came, then their events, each with one wait for the disk; then the
/// workers hear of it.
void Master::write_results() {
  if (!new_parts_.empty()) {
    if (!results_) {
      results_ = std::make_unique<FileWriter>(join_path(parts_folder_, new_parts_.front().file),
                                              FileWriter::Mode::create);
      results_->sync();
      sync_dir(parts_folder_);
    }
    results_->write(new_results_);
    results_->sync();
    results_bytes_ += std::ssize(new_results_);
    journal_->add(new_parts_);
    new_results_.clear();
    new_parts_.clear();
  }
  for (const auto& [member, range] : to_confirm_) {
    member->socket.queue({.type = "taken", .first = range.first, .rows = range.count});
  }
  to_confirm_.clear();
}

void Master::add_to_summary(const BatchPart& part) {
  summary_.outputs += part.outputs;
  summary_.errors += part.errors;
  summary_.blanks += part.blanks;
  summary_.prompt_tokens += part.prompt_tokens;
  summary_.tokens += part.tokens;
}

void Master::give_up_rows() {
  for (const int64_t row : table_->take_given_up()) {
    const std::string text = fmt::format("its worker was lost {} times while it had this row alone",
                                         options_.shards.max_losses);
    log_warning("batch: {}:{}: {}; it is recorded as an error", options_.input, row + 1, text);
    commit({row_error(row, {}, "worker_lost", text)}, {row, 1});
  }
}

/// Sends the workers the message that the job is finished, or that this master leaves.
void Master::send_farewell() {
  listener_.reset();
  const bool is_finished = table_->is_complete();
  for (Member& member : members_) {
    if (!member.ends && is_finished) {
      member.socket.queue({.type = "finished"});
    }
  }
  const double deadline = now() + kFarewellS;
  for (bool writes = true; writes && now() < deadline;) {
    writes = false;
    for (auto member = members_.begin(); member != members_.end();) {
      const bool is_open = member->socket.write_some();
      writes |= is_open && member->socket.wants_to_write();
      member = is_open ? std::next(member) : members_.erase(member);
    }
    ::poll(nullptr, 0, writes ? kBatchPollMs : 0);
  }
  members_.clear();
}

std::string Master::state() const {
  int64_t workers = 0;
  for (const Member& member : members_) {
    workers += member.worker >= 0 ? 1 : 0;
  }
  const double seconds = std::max(now(), 1e-9);
  const double rate = static_cast<double>(table_->done() - summary_.restored) / seconds;
  std::string text = fmt::format("{} of {} rows done, {} in work by {}", table_->done(),
                                 table_->rows(), table_->doing(), counted(workers, "worker"));
  if (summary_.errors > 0) {
    text += fmt::format(", {}", counted(summary_.errors, "error"));
  }
  if (rate > 0) {
    const auto tokens = static_cast<double>(summary_.tokens - summary_.restored_tokens);
    text += fmt::format("; {:.3g} rows/s, {:.3g} tokens/s", rate, tokens / seconds);
    if (const int64_t left = table_->rows() - table_->done(); left > 0) {
      text += fmt::format(", {} left", human_time(static_cast<double>(left) / rate));
    }
  }
  return text;
}

void Master::show(bool now_please) {
  if (!options_.progress || (!now_please && now() - shown_at_ < kProgressIntervalS)) return;
  shown_at_ = now();
  options_.progress(state());
}

}  // namespace

BatchSummary run_batch_master(const BatchMasterOptions& options) { return Master(options).run(); }

}  // namespace hocket::serve
