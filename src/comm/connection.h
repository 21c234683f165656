// SPDX-License-Identifier: Apache-2.0
// Connection of this process to the others of its run: heartbeats, detection of failures, and a
// common end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/shared_table_client.h"
#include "comm/transport.h"

namespace hocket::comm {

/// Every process publishes a heartbeat several times a second, with its activity and the rank that
/// it waits for. It also checks whether a process has failed. On a timeout, it follows the
/// published wait-for edges to the rank that waits for nobody and blames it. The first blame
/// published is the reason that every process reports.
class Connection : public Processes {
 public:
  /// `timeout`: limit of every wait.
  Connection(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout);
  /// Waits until all messages are delivered; after a failure, waits for nothing.
  ~Connection() override;

  int32_t size() const override { return transport_->size(); }
  int32_t index() const override { return transport_->rank(); }
  std::vector<std::string> all_gather(const std::string& mine) override;
  std::vector<std::string> exchange(std::vector<std::string> given) override;

  /// Sends a message of a program: see Transport. Throws Error that names the failed rank.
  void send(Message message, int32_t to, int32_t tag);
  /// Begins a send that must be waited for; null for no bytes.
  std::unique_ptr<Request> begin_send(Message message, int32_t to, int32_t tag);
  /// Posts a receive; null for no bytes, which are never sent.
  std::unique_ptr<Request> begin_receive(void* into, int64_t bytes, int32_t from, int32_t tag);
  void wait(Request* request, int32_t from);
  void receive(void* into, int64_t bytes, int32_t from, int32_t tag);
  /// Returns the peak message bytes of this process, over all connections.
  int64_t peak_message_bytes() const { return comm::peak_message_bytes(); }

  /// Returns the transport's collectives among these ranks, which are ascending and include this
  /// one. The first call for a group is collective: all members call it, and synchronise by
  /// messages with this tag.
  CollectiveGroup& group(std::span<const int32_t> members, int32_t tag);
  /// Waits for a collective of the members.
  void wait(Request& collective, std::span<const int32_t> members);
  /// Runs an all-reduce in which all ranks add one, so that a transport without working collectives
  /// fails here and not in a step. Collective.
  void check_collectives();

  /// Registers callbacks until the owner is unwatched: `doing` describes this rank's activity
  /// ("linear_dw L3 mb2 backward"), which other ranks report if it fails; `stop` is called with the
  /// reason when a process fails.
  void watch(const void* owner, std::function<std::string()> doing,
             std::function<void(const std::string&)> stop);
  void unwatch(const void* owner);
  /// Ends all processes with this reason, unless a reason was published before. Returns the
  /// effective reason.
  std::string fail(const std::string& reason);
  /// Returns whether this process prints why the run ends: rank 0, or rank 1 if rank 0 failed.
  bool reports_failure();
  /// Ends the monitoring in all processes; afterwards each may exit. Collective.
  void leave();

 private:
  /// Last heartbeat of a process.
  struct Heartbeat {
    int32_t waits_for = -1;  ///< rank; -1: none
    int64_t beat = 0;        ///< number of its heartbeats
    std::string doing;
  };
  class Wait;

  /// Callbacks of an owner.
  struct Watched {
    std::function<std::string()> doing;
    std::function<void(const std::string&)> stop;
  };

  void send_text(const std::string& text, int32_t to);
  std::string receive_text(int32_t from);
  void watch_all();
  void await_readers();
  void beat();
  void watch_shared_table();
  bool is_failed();
  /// `failure`: the rank, a newline, and the reason.
  void stop(const std::string& failure);
  std::string fail_for(int32_t rank, const std::string& reason);
  Heartbeat heartbeat_of(int32_t rank);
  /// `members`: members of the failed collective; empty for a message of `from`.
  [[noreturn]] void blame(int32_t from, const WaitResult& received,
                          std::span<const int32_t> members = {});
  int32_t silent_one(std::span<const int32_t> members);
  bool is_shared_table_silent();
  /// Returns the host of the silent shared table, and the reason.
  std::pair<int32_t, std::string> silent_holder();
  std::vector<int32_t> waiting_from(int32_t from);
  /// Returns the rank to blame, and the reason.
  std::pair<int32_t, std::string> verdict(int32_t from, const WaitResult& received,
                                          bool asks = true);

  const std::shared_ptr<Transport> transport_;  ///< shared with abandoned threads
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<SharedTable> shared_table_;
  SharedTableClient shared_table_client_;

  std::mutex mutex_;  ///< guards the members up to groups_
  std::condition_variable ends_;
  bool leaving_ = false;
  std::string failure_;           ///< reason why the run ends; empty: it does not
  int32_t failed_rank_ = -1;      ///< rank to blame for it
  std::map<int32_t, int> waits_;  ///< number of lanes that wait, by the rank that they wait for
  std::string doing_before_;      ///< last task, reported between steps
  std::map<int32_t, Heartbeat> last_heartbeats_;  ///< last one read, by rank
  std::map<std::vector<int32_t>, std::unique_ptr<CollectiveGroup>> groups_;
  int64_t beats_ = 0;         ///< used by watch_ only
  std::mutex watched_mutex_;  ///< held while the callbacks run
  std::map<const void*, Watched> watched_;
  std::thread watch_;
};

}  // namespace hocket::comm
