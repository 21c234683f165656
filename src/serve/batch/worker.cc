// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "serve/batch/batch_socket.h"
#include "serve/batch/shard_table.h"

namespace hocket::serve {

namespace {

constexpr int kWorkerPollMs = 50;
constexpr double kConnectTimeout = 5, kConnectInterval = 0.1;
/// Results that the master has not confirmed; with more of them no shard is asked for.
constexpr int64_t kMaxUnconfirmed = 4;

/// Rows between the network's thread and the generator's, and their results on the way back.
class RowDesk {
 public:
  explicit RowDesk(RowGenerator& generator)
      : generator_(generator), slots_(std::max<int64_t>(1, generator.slots())) {
    if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) fail_run("batch", "no pipe is left");
    thread_ = std::thread([this] { generate(); });
  }
  ~RowDesk() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      changed_.notify_all();
    }
    generator_.cancel();
    thread_.join();
    ::close(wake_[0]);
    ::close(wake_[1]);
  }
  RowDesk(const RowDesk&) = delete;
  RowDesk& operator=(const RowDesk&) = delete;

  int64_t slots() const { return slots_; }
  int wake_fd() const { return wake_[0]; }
  void drain_wake() const {
    char bytes[64];
    while (::read(wake_[0], bytes, sizeof bytes) > 0) {
    }
  }

  void add(RowRange range, std::vector<InputRow> rows) {
    const std::lock_guard lock(mutex_);
    shards_.push_back({range, {}, false});
    Shard* shard = &shards_.back();
    for (InputRow& row : rows) {
      waiting_.push_back({std::move(row), shard});
    }
    changed_.notify_all();
  }
  /// Rows that are not begun.
  int64_t waiting() {
    const std::lock_guard lock(mutex_);
    return std::ssize(waiting_);
  }
  /// Rows finished since the beginning. Throws what ended the generator.
  int64_t finished() {
    const std::lock_guard lock(mutex_);
    if (error_) {
      std::rethrow_exception(error_);
    }
    return finished_;
  }
  int64_t unconfirmed() {
    const std::lock_guard lock(mutex_);
    return std::count_if(shards_.begin(), shards_.end(), [](const Shard& shard) {
      return std::ssize(shard.results) == shard.range.count;
    });
  }
  /// Shards that were not delivered over this connection: takes a complete one as a result, and
  /// another, if `holds`, as held.
  void for_each_undelivered(bool holds, const std::function<void(BatchMessage)>& take) {
    const std::lock_guard lock(mutex_);
    for (Shard& shard : shards_) {
      const bool is_complete = std::ssize(shard.results) == shard.range.count;
      BatchMessage message{.first = shard.range.first, .rows = shard.range.count};
      if (is_complete && !shard.is_delivered) {
        shard.is_delivered = true;
        message.type = "result";
        for (const RowResult& result : shard.results) {
          append_result(result, &message.body);
        }
        take(std::move(message));
      } else if (!is_complete && holds) {
        message.type = "hold";
        take(std::move(message));
      }
    }
  }
  /// Marks results without confirmation to be delivered again, after a connection ended.
  void forget_deliveries() {
    const std::lock_guard lock(mutex_);
    for (Shard& shard : shards_) {
      shard.is_delivered = false;
    }
  }
  void confirm(RowRange range) {
    const std::lock_guard lock(mutex_);
    const auto shard = std::find_if(shards_.begin(), shards_.end(), [&](const Shard& other) {
      return other.range == range && other.is_delivered;
    });
    if (shard != shards_.end()) {
      shards_.erase(shard);
    }
  }

 private:
  struct Shard {
    RowRange range;
    std::vector<RowResult> results;
    bool is_delivered = false;
  };
  struct Waiting {
    InputRow row;
    Shard* shard = nullptr;  ///< lives until all its rows have results
  };

  void generate() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] {
        return (closed_ && under_way_ == 0) ||
               (!closed_ && !error_ && !waiting_.empty() && under_way_ < slots_);
      });
      if (closed_) return;
      Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      ++under_way_;
      lock.unlock();
      wake();  // the master may be asked for more
      generator_.begin(std::move(next.row),
                       [this, shard = next.shard](RowResult result, std::exception_ptr error) {
                         finish(shard, std::move(result), error);
                       });
      lock.lock();
    }
  }
  void finish(Shard* shard, RowResult result, const std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    --under_way_;
    changed_.notify_all();
    if (error) {
      error_ = error;
      wake();
      return;
    }
    shard->results.push_back(std::move(result));
    ++finished_;
    if (std::ssize(shard->results) == shard->range.count) {
      wake();
    }
  }
  void wake() const {
    const char byte = 0;
    [[maybe_unused]] const ssize_t n = ::write(wake_[1], &byte, 1);
  }

  RowGenerator& generator_;
  const int64_t slots_;
  int wake_[2] = {-1, -1};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Shard> shards_;
  std::deque<Waiting> waiting_;
  int64_t under_way_ = 0, finished_ = 0;
  bool closed_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

class BatchWorker {
 public:
  explicit BatchWorker(const BatchWorkerOptions& options) : options_(options) {}
  void run();

 private:
  bool is_stopped() const { return options_.stop && options_.stop(); }
  void connect();
  void welcome(const std::string& settings);
  void step();
  bool exchange();
  void send_updates();
  void take(BatchMessage message);
  void drop_connection();

  const BatchWorkerOptions& options_;
  std::optional<BatchSocket> socket_;
  std::optional<RowDesk> desk_;  ///< once the job's settings are known
  std::string settings_;
  int64_t alone_since_ = now_ns();  ///< when the connection ended
  bool is_welcome_ = false, is_finished_ = false;
  bool wants_ = false;      ///< an answer to `want` is on its way
  int64_t asks_again_ = 0;  ///< not before this time
  int64_t beat_at_ = 0;
  int64_t tries_at_ = 0;  ///< time of the next attempt to connect
};

void BatchWorker::run() {
  while (!is_finished_) {
    if (is_stopped()) {
      if (socket_) {
        socket_->queue({.type = "bye"});
        socket_->write_some();
      }
      return;
    }
    if (desk_) {
      desk_->finished();  // throws what ended the generator
    }
    if (socket_) {
      step();
    } else {
      connect();
    }
  }
}

void BatchWorker::connect() {
  if (seconds_since(alone_since_) > options_.reconnect_s) {
    fail_run("batch", "there is no master at {}:{} since {:.0f} s", options_.host, options_.port,
             options_.reconnect_s);
  }
  if (now_ns() < tries_at_) {
    ::poll(nullptr, 0, kWorkerPollMs);
    return;
  }
  tries_at_ = now_ns() + static_cast<int64_t>(kConnectInterval * 1e9);
  std::optional<BatchSocket> socket =
      BatchSocket::connect(options_.host, options_.port, kConnectTimeout);
  if (!socket) return;
  socket_.emplace(std::move(*socket));
  is_welcome_ = wants_ = false;
  asks_again_ = beat_at_ = 0;
  // Loading a model takes its time: a first connection only asks for the settings.
  socket_->queue({.type = desk_ ? "hello" : "ask",
                  .key = options_.key,
                  .name = options_.name,
                  .count = desk_ ? desk_->slots() : 0});
}

void BatchWorker::welcome(const std::string& settings) {
  if (!desk_) {
    settings_ = settings;
    drop_connection();
    desk_.emplace(options_.generator(settings));
    alone_since_ = now_ns();
    tries_at_ = 0;
    return;
  }
  if (settings != settings_) {
    fail_run("batch", "the master at {}:{} has another job than before", options_.host,
             options_.port);
  }
  is_welcome_ = true;
  desk_->for_each_undelivered(true,
                              [&](BatchMessage message) { socket_->queue(std::move(message)); });
}

void BatchWorker::drop_connection() {
  socket_.reset();
  alone_since_ = now_ns();
  if (desk_) {
    desk_->forget_deliveries();
  }
}

void BatchWorker::step() {
  if (is_welcome_) {
    send_updates();
  }
  if (!exchange()) {
    drop_connection();
  }
}

/// Asks for rows, delivers results, and says that it lives.
void BatchWorker::send_updates() {
  desk_->for_each_undelivered(false,
                              [&](BatchMessage message) { socket_->queue(std::move(message)); });
  const int64_t now = now_ns();
  if (!wants_ && now >= asks_again_ && desk_->waiting() < desk_->slots() &&
      desk_->unconfirmed() < kMaxUnconfirmed) {
    socket_->queue({.type = "want"});
    wants_ = true;
  }
  if (now >= beat_at_) {
    beat_at_ = now + static_cast<int64_t>(options_.beat_s * 1e9);
    socket_->queue({.type = "beat", .count = desk_->finished()});
  }
}

/// Reads and writes; false if the connection has ended.
bool BatchWorker::exchange() {
  if (!socket_->write_some()) return false;
  pollfd waiting[2] = {
      {socket_->fd(), static_cast<short>(POLLIN | (socket_->wants_to_write() ? POLLOUT : 0)), 0},
      {desk_ ? desk_->wake_fd() : -1, POLLIN, 0}};
  ::poll(waiting, 2, kWorkerPollMs);
  if (desk_) {
    desk_->drain_wake();
  }
  const bool is_open = socket_->read_some();
  while (socket_ && !is_finished_) {
    std::optional<BatchMessage> message = socket_->next();
    if (!message) return is_open;
    take(std::move(*message));
  }
  return true;
}

void BatchWorker::take(BatchMessage message) {
  if (message.type == "welcome") {
    welcome(message.text);
  } else if (message.type == "refused") {
    fail_run("batch", "the master at {}:{} refuses: {}", options_.host, options_.port,
             printable(message.text));
  } else if (message.type == "shard") {
    wants_ = false;
    std::vector<InputRow> rows = parse_rows(message.body, "the master's shard");
    if (rows.empty() || std::ssize(rows) != message.rows) fail_run("batch", "a shard lacks rows");
    desk_->add({message.first, message.rows}, std::move(rows));
  } else if (message.type == "wait") {
    wants_ = false;
    asks_again_ = now_ns() + message.count * 1'000'000;
  } else if (message.type == "taken") {
    desk_->confirm({message.first, message.rows});
  } else if (message.type == "finished") {
    is_finished_ = true;
  } else {
    fail_run("batch", "the master's message is {}", quote(message.type));
  }
}

}  // namespace

void run_batch_worker(const BatchWorkerOptions& options) { BatchWorker(options).run(); }

}  // namespace hocket::serve
