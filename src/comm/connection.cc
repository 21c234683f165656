// SPDX-License-Identifier: Apache-2.0
// Messages between the processes of a run, with failure detection. Every process publishes
// heartbeats with its activity in the shared store (SharedTableClient), from a thread that also
// watches for failures. A wait that lasts too long follows the wait-for edges in the heartbeats to
// the rank to blame, and all ranks end with one error that names it.
#include "comm/connection.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "comm/c10d.h"
#include "comm/run_with_timeout.h"
#include "program/program.h"

namespace hocket::comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Interval of heartbeats.
constexpr milliseconds kBeat{200};
/// Time that a failing process has to report its error before others report in its place.
constexpr milliseconds kGrace{1500};
/// A process without a heartbeat for this time is dead or stopped.
constexpr milliseconds kSilence = 6 * kBeat;
constexpr int32_t kNobody = -1;
/// Tags of exchanges outside of steps; programs use smaller tags (ProcessWorld).
constexpr int32_t kSizeTag = 0x7ffffff0;
constexpr int32_t kTextTag = kSizeTag + 1;
constexpr int32_t kGroupTag = kTextTag + 1;
constexpr size_t kBeginsWith = 248;  ///< bytes of text in the first message
constexpr const char* kFailure = "failure";

std::string key_of(int32_t rank) { return fmt::format("doing/{}", rank); }

std::string read_key(int32_t rank) { return fmt::format("has read/{}", rank); }

/// Returns the member after a rank, cyclically.
int32_t next_of(std::span<const int32_t> members, int32_t rank) {
  const auto at = std::upper_bound(members.begin(), members.end(), rank);
  return at == members.end() ? members.front() : *at;
}

/// Concatenates texts, each after its length.
std::string pack_texts(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    const uint64_t bytes = text.size();
    all.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(text);
  }
  return all;
}

std::vector<std::string> unpack_texts(const std::string& all) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < all.size();) {
    uint64_t bytes = 0;
    HOCKET_CHECK(all.size() - at >= sizeof bytes, "texts end within a length");
    std::memcpy(&bytes, all.data() + at, sizeof bytes);
    at += sizeof bytes;
    HOCKET_CHECK(all.size() - at >= bytes, "texts end within a text");
    texts.push_back(all.substr(at, bytes));
    at += bytes;
  }
  return texts;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

/// Scope in which this rank's heartbeats report that it waits for another rank.
class Connection::Wait {
 public:
  Wait(Connection& connection, int32_t from) : connection_(connection), from_(from) {
    std::lock_guard lock(connection_.mutex_);
    ++connection_.waits_[from_];
  }
  ~Wait() {
    std::lock_guard lock(connection_.mutex_);
    if (--connection_.waits_[from_] == 0) {
      connection_.waits_.erase(from_);
    }
  }

 private:
  Connection& connection_;
  int32_t from_;
};

Connection::Connection(std::unique_ptr<Transport> transport, milliseconds timeout)
    : transport_(std::move(transport)),
      timeout_(timeout),
      shared_table_(transport_->shared_table()),
      shared_table_client_(shared_table_, kSilence),
      watch_([this] { watch_all(); }) {}

Connection::~Connection() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
    ends_.notify_all();
  }
  watch_.join();
  if (!is_failed()) return;
  if (index() == 0) {
    await_readers();
  }
  transport_->abort();
}

/// Waits, on rank 0, which may host the shared table, until the others have read there why the run
/// ends.
void Connection::await_readers() {
  const auto deadline = steady_clock::now() + kGrace;
  for (int32_t rank = 1; rank < size(); ++rank) {
    try {
      while (!shared_table_client_.get(read_key(rank)) && steady_clock::now() < deadline) {
        std::this_thread::sleep_for(milliseconds(20));
      }
    } catch (const std::exception&) {
      return;  // the launcher has it, or had it
    }
  }
}

void Connection::leave() {
  // The first barrier ends the monitoring everywhere, so that nobody takes the end of the store or
  // of connections for a failure.
  barrier();
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
    ends_.notify_all();
  }
  barrier();
}

void Connection::watch(const void* owner, std::function<std::string()> doing,
                       std::function<void(const std::string&)> stop) {
  std::lock_guard lock(watched_mutex_);
  watched_[owner] = {std::move(doing), std::move(stop)};
}

void Connection::unwatch(const void* owner) {
  std::lock_guard lock(watched_mutex_);
  watched_.erase(owner);
}

/// Sends a text in one or two messages of known sizes: the first has the length and the text's
/// beginning, the second the rest. Most texts are short, and each message costs a round trip.
void Connection::send_text(const std::string& text, int32_t to) {
  const int64_t bytes = static_cast<int64_t>(text.size());
  const size_t begins = std::min(text.size(), kBeginsWith);
  Message first(sizeof bytes + kBeginsWith);
  std::memcpy(first.data.get(), &bytes, sizeof bytes);
  std::memcpy(first.data.get() + sizeof bytes, text.data(), begins);
  std::memset(first.data.get() + sizeof bytes + begins, 0, kBeginsWith - begins);
  send(std::move(first), to, kSizeTag);
  if (begins == text.size()) return;
  Message rest(static_cast<int64_t>(text.size() - begins));
  std::memcpy(rest.data.get(), text.data() + begins, text.size() - begins);
  send(std::move(rest), to, kTextTag);
}

std::string Connection::receive_text(int32_t from) {
  std::array<char, sizeof(int64_t) + kBeginsWith> first;
  receive(first.data(), first.size(), from, kSizeTag);
  int64_t bytes = 0;
  std::memcpy(&bytes, first.data(), sizeof bytes);
  std::string text(static_cast<size_t>(bytes), '\0');
  const size_t begins = std::min(text.size(), kBeginsWith);
  std::memcpy(text.data(), first.data() + sizeof bytes, begins);
  receive(text.data() + begins, bytes - static_cast<int64_t>(begins), from, kTextTag);
  return text;
}

std::vector<std::string> Connection::exchange(std::vector<std::string> given) {
  HOCKET_CHECK(std::cmp_equal(given.size(), size()), "{} texts for {} processes", given.size(),
               size());
  // Starts with the next rank, so that not all ranks send to the same one at a time.
  for (int32_t i = 1; i < size(); ++i) {
    const int32_t to = (index() + i) % size();
    send_text(given[static_cast<size_t>(to)], to);
    given[static_cast<size_t>(to)].clear();
  }
  for (int32_t i = 1; i < size(); ++i) {
    const int32_t from = (index() + size() - i) % size();
    given[static_cast<size_t>(from)] = receive_text(from);
  }
  return given;
}

std::vector<std::string> Connection::all_gather(const std::string& mine) {
  // Rank 0 gathers the texts and sends all of them back as one.
  if (index() != 0) {
    send_text(mine, 0);
    return unpack_texts(receive_text(0));
  }
  std::vector<std::string> texts = {mine};
  for (int32_t rank = 1; rank < size(); ++rank) {
    texts.push_back(receive_text(rank));
  }
  const std::string all = pack_texts(texts);
  for (int32_t rank = 1; rank < size(); ++rank) {
    send_text(all, rank);
  }
  return texts;
}

void Connection::send(Message message, int32_t to, int32_t tag) {
  if (message.bytes == 0) return;
  try {
    transport_->send(std::move(message), to, tag);
  } catch (const std::exception& error) {
    blame(to, {WaitResult::End::disconnected, error.what()});
  }
}

std::unique_ptr<Request> Connection::begin_send(Message message, int32_t to, int32_t tag) {
  if (message.bytes == 0) return nullptr;
  try {
    return transport_->begin_send(std::move(message), to, tag);
  } catch (const std::exception& error) {
    blame(to, {WaitResult::End::disconnected, error.what()});
  }
}

std::unique_ptr<Request> Connection::begin_receive(void* into, int64_t bytes, int32_t from,
                                                   int32_t tag) {
  return bytes == 0 ? nullptr : transport_->receive(into, bytes, from, tag);
}

void Connection::wait(Request* request, int32_t from) {
  if (!request) return;
  const Wait wait(*this, from);
  const WaitResult received = request->wait(timeout_);
  if (received.end != WaitResult::End::completed) {
    blame(from, received);
  }
}

void Connection::receive(void* into, int64_t bytes, int32_t from, int32_t tag) {
  wait(begin_receive(into, bytes, from, tag).get(), from);
}

CollectiveGroup& Connection::group(std::span<const int32_t> members, int32_t tag) {
  const std::vector<int32_t> ranks(members.begin(), members.end());
  {
    std::lock_guard lock(mutex_);
    const auto known = groups_.find(ranks);
    if (known != groups_.end()) return *known->second;
  }
  // The members synchronise by messages first, because those waits end when a member fails.
  for (const int32_t other : ranks) {
    if (other == index()) continue;
    Message here(1);
    here.data[0] = std::byte{1};
    send(std::move(here), other, tag);
  }
  for (const int32_t other : ranks) {
    if (other == index()) continue;
    std::byte there{};
    receive(&there, 1, other, tag);
  }
  // The members then meet at the store, which may stop answering meanwhile.
  std::optional<std::unique_ptr<CollectiveGroup>> group;
  try {
    group = run_with_timeout<std::unique_ptr<CollectiveGroup>>(
        timeout_ + timeout_ / 2,
        [transport = transport_, ranks] { return transport->group(ranks); });
  } catch (const std::exception& error) {
    blame(next_of(ranks, index()), {WaitResult::End::disconnected, error.what()}, ranks);
  }
  if (!group) {
    blame(next_of(ranks, index()), {WaitResult::End::timed_out, "no group"}, ranks);
  }
  std::lock_guard lock(mutex_);
  return *(groups_[ranks] = std::move(*group));
}

/// Waits for a collective, whose late member is not known. Each member reports that it waits for
/// the next, so that following the chain leads to one that does not wait.
void Connection::wait(Request& collective, std::span<const int32_t> members) {
  const int32_t next = next_of(members, index());
  const Wait wait(*this, next);
  const WaitResult received = collective.wait(timeout_);
  if (received.end != WaitResult::End::completed) {
    blame(next, received, members);
  }
}

void Connection::check_collectives() {
  std::vector<int32_t> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  CollectiveGroup& all = group(ranks, kGroupTag);
  const auto memory = std::make_shared<Message>(sizeof(double));
  double sum = 1;
  std::memcpy(memory->data.get(), &sum, sizeof sum);
  wait(*all.all_reduce({memory, memory->data.get(), memory->bytes}, ReduceType::f64, false), ranks);
  std::memcpy(&sum, memory->data.get(), sizeof sum);
  if (sum != size()) {
    fail_run("comm", "an all-reduce of c10d, in which each of {} ranks adds 1, gave {}", size(),
             sum);
  }
}

// ---- detection of failures ---------------------------------------------------------------------

void Connection::watch_all() {
  std::unique_lock lock(mutex_);
  while (!leaving_ && failure_.empty()) {
    lock.unlock();
    try {
      watch_shared_table();
    } catch (const std::exception& error) {
      // The store is gone, and with it the rank that hosted it, if a rank did. Its connections end
      // too, and with them every wait for it; this only reports it earlier.
      log_debug("the shared table: {}", error.what());
      lock.lock();
      const bool leaving = leaving_;
      lock.unlock();
      if (!leaving) {
        const auto [rank, reason] = verdict(0, {WaitResult::End::disconnected, error.what()});
        stop(fmt::format("{}\n{}", rank, reason));
      }
      return;
    }
    lock.lock();
    ends_.wait_for(lock, kBeat, [&] { return leaving_; });
  }
}

/// Reads the store. If it is silent for longer than a rank may be, its host is blamed.
void Connection::watch_shared_table() {
  if (shared_table_client_.silent_for() < kSilence) {
    try {
      return beat();
    } catch (const SharedTableClient::NoAnswer& silent) {
      log_debug("{}", silent.what());
    }
  }
  if (shared_table_client_.silent_for() < timeout_) return;
  const auto [rank, reason] = silent_holder();
  stop(fmt::format("{}\n{}", rank, reason));
}

/// Publishes a heartbeat with this rank's activity, and looks for a failure. The heartbeat of rank
/// 0, which may host the store, is read each time: once it is gone, nobody can read it.
void Connection::beat() {
  std::string now;
  {
    std::lock_guard lock(watched_mutex_);
    for (const auto& [owner, watched] : watched_) {
      now += watched.doing ? watched.doing() : "";
    }
  }
  int32_t waits_for = kNobody;
  std::string said;
  {
    std::lock_guard lock(mutex_);
    waits_for = waits_.empty() ? kNobody : waits_.begin()->first;
    if (!now.empty()) {
      doing_before_ = now;
    }
    said = doing_before_;
  }
  shared_table_client_.set(key_of(index()),
                           fmt::format("{} {}\n{}\n{}", waits_for, beats_++, host_name(), said));
  if (index() != 0) {
    heartbeat_of(0);
  }
  if (const auto failure = shared_table_client_.get(kFailure)) {
    stop(*failure);
  }
}

void Connection::stop(const std::string& failure) {
  const std::string reason = failure.substr(failure.find('\n') + 1);
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = reason;
    failed_rank_ = std::stoi(failure);
    ends_.notify_all();
  }
  try {
    shared_table_client_.set(read_key(index()), "");
  } catch (const std::exception& error) {
    log_debug("the shared table: {}", error.what());
  }
  transport_->abort();
  std::lock_guard lock(watched_mutex_);
  for (const auto& [owner, watched] : watched_) {
    if (watched.stop) {
      watched.stop(reason);
    }
  }
}

bool Connection::is_failed() {
  std::lock_guard lock(mutex_);
  return !failure_.empty();
}

bool Connection::reports_failure() {
  std::lock_guard lock(mutex_);
  return index() == (failed_rank_ == 0 ? 1 : 0);
}

std::string Connection::fail(const std::string& reason) { return fail_for(index(), reason); }

std::string Connection::fail_for(int32_t rank, const std::string& reason) {
  std::string first = fmt::format("{}\n{}", rank, reason);
  try {
    first = shared_table_client_.set_if_absent(kFailure, first);
  } catch (const std::exception& error) {
    log_debug("the shared table: {}", error.what());
  }
  stop(first);
  std::lock_guard lock(mutex_);
  return failure_;
}

/// Returns the rank's last heartbeat; for rank 0 the last one read, if the store is gone or silent.
Connection::Heartbeat Connection::heartbeat_of(int32_t rank) {
  std::optional<std::string> text;
  try {
    text = shared_table_client_.get(key_of(rank));
  } catch (const std::exception&) {
    if (rank == 0 && index() != 0) {
      std::lock_guard lock(mutex_);
      const auto known = last_heartbeats_.find(0);
      if (known == last_heartbeats_.end()) throw;
      return known->second;
    }
    throw;
  }
  Heartbeat heartbeat;
  if (text) {
    const size_t first = text->find('\n');
    const size_t second = text->find('\n', first + 1);
    heartbeat.waits_for = std::stoi(*text);
    heartbeat.beat = std::stoll(text->substr(text->find(' ')));
    const std::string host = text->substr(first + 1, second - first - 1);
    const std::string doing = text->substr(second + 1);
    heartbeat.doing =
        fmt::format("on host {}{}{}", host, doing.empty() ? "" : "; its last task: ", doing);
  }
  std::lock_guard lock(mutex_);
  last_heartbeats_[rank] = heartbeat;
  return heartbeat;
}

bool Connection::is_shared_table_silent() {
  try {
    shared_table_client_.get(kFailure);
  } catch (const SharedTableClient::NoAnswer&) {
    return true;
  } catch (const std::exception& error) {
    log_debug("the shared table: {}", error.what());  // it is gone, not silent
  }
  return false;
}

/// Returns the host of the silent shared table, which is blamed, with the reason. All ranks reach
/// the same verdict without communication.
std::pair<int32_t, std::string> Connection::silent_holder() {
  const double seconds = std::chrono::duration<double>(shared_table_client_.silent_for()).count();
  const std::string why = fmt::format(
      "has not answered for {:.1f} s (plan.timeout_s is {}): it is stopped, or cannot be reached",
      seconds, std::chrono::duration<double>(timeout_).count());
  const int32_t rank = shared_table_->holder();
  if (rank == kNobody) {
    return {kNobody, "the launcher, which hosts the shared table, " + why};
  }
  std::string doing;
  {
    std::lock_guard lock(mutex_);
    const auto known = last_heartbeats_.find(rank);
    if (known != last_heartbeats_.end() && !known->second.doing.empty()) {
      doing = " (" + known->second.doing + ")";
    }
  }
  return {rank, fmt::format("rank {}{} {}", rank, doing, why)};
}

/// Returns the first other member without a heartbeat, which is dead or stopped; kNobody if all
/// have one.
int32_t Connection::silent_one(std::span<const int32_t> members) {
  if (members.empty()) return kNobody;
  std::map<int32_t, int64_t> before;
  for (const bool again : {false, true}) {
    for (const int32_t member : members) {
      if (member == index()) continue;
      int64_t beat = 0;
      try {
        beat = heartbeat_of(member).beat;
      } catch (const std::exception&) {
        return 0;  // it hosted the store
      }
      if (again && beat == before[member]) return member;
      before[member] = beat;
    }
    if (!again) {
      std::this_thread::sleep_for(kSilence);
    }
  }
  return kNobody;
}

void Connection::blame(int32_t from, const WaitResult& received, std::span<const int32_t> members) {
  // A failing rank reports its own error if it can; others report in its place only after a grace
  // period.
  const bool timed_out = received.end == WaitResult::End::timed_out;
  const auto deadline = steady_clock::now() + (timed_out ? milliseconds(0) : kGrace);
  while (!is_failed() && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  std::string reason;
  {
    std::lock_guard lock(mutex_);
    reason = failure_;
  }
  if (reason.empty()) {
    log_debug("nothing from rank {}: {}", from, received.text);
    const int32_t holder = shared_table_->holder();
    if (holder != kNobody && holder != index() && is_shared_table_silent()) {
      const auto [rank, text] = silent_holder();
      reason = fail_for(rank, text);
      throw Error(Error::Kind::kRun, "comm", reason, Error::Cause::stopped);
    }
    const int32_t silent = silent_one(members);
    if (silent == kNobody && !members.empty() && received.end == WaitResult::End::disconnected) {
      // All members are alive, so the collective itself failed.
      reason = fail(fmt::format("rank {}: a collective among {} ranks: {}", index(), members.size(),
                                without_backtrace(received.text)));
    } else {
      const auto [rank, text] =
          silent == kNobody ? verdict(from, received) : verdict(silent, received, false);
      reason = fail_for(rank, text);
    }
  }
  throw Error(Error::Kind::kRun, "comm", reason, Error::Cause::stopped);
}

/// Follows the wait-for edges from a rank to one that waits for no other, or to a cycle; then all
/// its members are to blame. A waiting rank is not to blame unless it is stopped: then its
/// heartbeat is stale, and the chain ends with it.
std::vector<int32_t> Connection::waiting_from(int32_t from) {
  std::vector<int32_t> chain = {from};
  std::set<int32_t> seen = {index(), from};
  int32_t next = heartbeat_of(from).waits_for;
  while (next != kNobody && seen.insert(next).second) {
    chain.push_back(next);
    next = heartbeat_of(next).waits_for;
  }
  if (chain.size() > 1) {
    const auto silent = std::find(chain.begin(), chain.end(), silent_one(chain));
    if (silent != chain.end()) {
      chain.erase(silent + 1, chain.end());
    }
  }
  return chain;
}

/// Returns the rank to blame for a missing message of `from`, and its last activity. `asks`: follow
/// the wait-for chain; otherwise `from` itself is blamed.
std::pair<int32_t, std::string> Connection::verdict(int32_t from, const WaitResult& received,
                                                    bool asks) {
  std::vector<int32_t> ranks = {from};
  Heartbeat heartbeat;
  try {
    if (asks && received.end == WaitResult::End::timed_out) {
      ranks = waiting_from(from);
    }
    heartbeat = heartbeat_of(ranks.back());
  } catch (const std::exception& error) {
    log_debug("the shared table: {}", error.what());
  }
  const int32_t rank = ranks.back();
  const std::string where = heartbeat.doing.empty() ? "" : " (" + heartbeat.doing + ")";
  if (received.end == WaitResult::End::disconnected) {
    return {rank, fmt::format("rank {}{} has exited without reporting an error", rank, where)};
  }
  return {rank, fmt::format("rank {}{} has sent nothing for {} s (plan.timeout_s): {}", rank, where,
                            std::chrono::duration<double>(timeout_).count(),
                            fmt::format("rank {} waits for rank {}", index(),
                                        fmt::join(ranks, ", which waits for rank ")))};
}

}  // namespace hocket::comm
