// SPDX-License-Identifier: Apache-2.0
// This process among those of its run: what each does just now, and that all end when one does.
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
#include "comm/notes.h"
#include "comm/wire.h"

namespace hocket::comm {

/// Every process notes several times a second what it does and whom it waits for, and looks whether
/// one has failed. Who fails to hear from another asks these notes who is to blame: it follows who
/// waits for whom to the end. The first one to be blamed is what all of them say.
class Connection : public Processes {
 public:
  /// `timeout`: of every wait.
  Connection(std::unique_ptr<Wire> wire, std::chrono::milliseconds timeout);
  /// After a failure it waits for nobody; else until its messages are gone.
  ~Connection() override;

  int32_t size() const override { return wire_->size(); }
  int32_t index() const override { return wire_->rank(); }
  std::vector<std::string> all_gather(const std::string& mine) override;
  std::vector<std::string> exchange(std::vector<std::string> given) override;

  /// Messages of a program: see Wire. What fails throws Error with who is to blame.
  void send(Message message, int32_t to, int32_t tag);
  /// The same, to be waited for; null for no bytes.
  std::unique_ptr<Incoming> begin_send(Message message, int32_t to, int32_t tag);
  /// Begins to receive; null for no bytes, which nobody sends.
  std::unique_ptr<Incoming> expect(void* into, int64_t bytes, int32_t from, int32_t tag);
  void wait(Incoming* incoming, int32_t from);
  void receive(void* into, int64_t bytes, int32_t from, int32_t tag);
  /// Of this process, whichever connection has them.
  int64_t peak_message_bytes() const { return comm::peak_message_bytes(); }

  /// The transport's own collectives among these ranks, ascending, this one among them. Made when
  /// it is first asked for: then all of them call it, with messages of this tag.
  Team& team(std::span<const int32_t> members, int32_t tag);
  /// Waits for a collective of theirs.
  void wait(Incoming& collective, std::span<const int32_t> members);
  /// All ranks add one in a collective of the transport's: what does not work there fails here, not
  /// in a step. All call it.
  void try_team();

  /// `doing` says what this rank does just now ("linear_dw L3 mb2 backward"), for the others to
  /// tell if it ends; `stop` is called when a process fails, with why. Until the owner is
  /// unwatched.
  void watch(const void* owner, std::function<std::string()> doing,
             std::function<void(const std::string&)> stop);
  void unwatch(const void* owner);
  /// Makes all processes end with this reason, unless there is one already. Returns the reason.
  std::string fail(const std::string& reason);
  /// True if this process tells why the run ends: rank 0, or rank 1 if that is who failed.
  bool speaks();
  /// When all have come, nobody watches any more, and each may end.
  void leave();

 private:
  /// What a process noted last.
  struct Note {
    int32_t waits_for = -1;  ///< a rank; -1: nobody
    int64_t beat = 0;        ///< how often it has noted something
    std::string doing;
  };
  class Wait;

  /// Who is watched here.
  struct Watched {
    std::function<std::string()> doing;
    std::function<void(const std::string&)> stop;
  };

  void send_text(const std::string& text, int32_t to);
  std::string receive_text(int32_t from);
  void watch_all();
  void await_readers();
  void beat();
  void watch_table();
  bool is_failed();
  /// `failure`: the rank, a line end, and the reason.
  void stop(const std::string& failure);
  std::string fail_for(int32_t rank, const std::string& reason);
  Note note_of(int32_t rank);
  /// `members`: of the collective that ended so; empty: it was a message of `from`.
  [[noreturn]] void blame(int32_t from, const Received& received,
                          std::span<const int32_t> members = {});
  int32_t silent_one(std::span<const int32_t> members);
  bool is_table_silent();
  std::pair<int32_t, std::string> silent_holder();
  std::vector<int32_t> waiting_from(int32_t from);
  /// A rank and why it is to blame.
  std::pair<int32_t, std::string> verdict(int32_t from, const Received& received, bool asks = true);

  const std::shared_ptr<Wire> wire_;  ///< shared with what is left behind
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Table> table_;
  Notes notes_;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable ends_;
  bool leaving_ = false;
  std::string failure_;                 ///< why the run ends; empty: it does not
  int32_t failed_rank_ = -1;            ///< whose fault it is
  std::map<int32_t, int> waits_;        ///< ranks that lanes wait for, and how many do
  std::string doing_before_;            ///< what the last task was, between steps
  std::map<int32_t, Note> last_notes_;  ///< as they were read last
  std::map<std::vector<int32_t>, std::unique_ptr<Team>> teams_;
  int64_t beats_ = 0;         ///< of watch_ alone
  std::mutex watched_mutex_;  ///< held while they are called
  std::map<const void*, Watched> watched_;
  std::thread watch_;
};

}  // namespace hocket::comm
