// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/processes_util.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"

namespace hocket::test {

namespace {

/// Gathers all texts everywhere, each after its length.
std::vector<std::string> exchange_by_gathering(comm::Processes& processes,
                                               const std::vector<std::string>& given) {
  std::string mine;
  for (const std::string& text : given) {
    mine += fmt::format("{} {}", text.size(), text);
  }
  std::vector<std::string> taken;
  for (const std::string& all : processes.all_gather(mine)) {
    size_t at = 0;
    for (int32_t process = 0; process < processes.size(); ++process) {
      const size_t space = all.find(' ', at);
      const size_t length = std::stoul(all.substr(at, space - at));
      if (process == processes.index()) {
        taken.push_back(all.substr(space + 1, length));
      }
      at = space + 1 + length;
    }
  }
  return taken;
}

}  // namespace

class ThreadProcesses::Member : public comm::Processes {
 public:
  Member(ThreadProcesses& all, int32_t index) : all_(all), index_(index) {}
  int32_t size() const override { return static_cast<int32_t>(all_.members_.size()); }
  int32_t index() const override { return index_; }
  std::vector<std::string> all_gather(const std::string& mine) override {
    return all_.all_gather(index_, mine);
  }
  std::vector<std::string> exchange(std::vector<std::string> given) override {
    return exchange_by_gathering(*this, given);
  }

 private:
  ThreadProcesses& all_;
  int32_t index_;
};

ThreadProcesses::ThreadProcesses(int32_t size) : given_(static_cast<size_t>(size)) {
  for (int32_t i = 0; i < size; ++i) {
    members_.push_back(std::make_unique<Member>(*this, i));
  }
}

ThreadProcesses::~ThreadProcesses() = default;

comm::Processes& ThreadProcesses::at(int32_t index) {
  return *members_[static_cast<size_t>(index)];
}

std::vector<std::string> ThreadProcesses::all_gather(int32_t index, const std::string& mine) {
  std::unique_lock lock(mutex_);
  given_[static_cast<size_t>(index)] = mine;
  const int64_t round = round_;
  if (++count_ == given_.size()) {
    gathered_ = given_;
    count_ = 0;
    ++round_;
    changed_.notify_all();
    return gathered_;
  }
  const bool came = changed_.wait_for(lock, std::chrono::seconds(60),
                                      [&] { return round_ != round || gone_ >= 0; });
  if (round_ != round) return gathered_;
  fail_run("processes", "{}", came ? fmt::format("rank {} is gone", gone_) : "nobody came");
}

std::vector<std::string> ThreadProcesses::run(const std::function<void(comm::Processes&)>& body) {
  count_ = 0;
  gone_ = -1;
  std::vector<std::string> thrown(members_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < members_.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body(*members_[i]);
        return;
      } catch (const std::exception& error) {
        thrown[i] = error.what();
      }
      const std::lock_guard lock(mutex_);
      if (gone_ < 0) {
        gone_ = static_cast<int32_t>(i);
      }
      changed_.notify_all();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return thrown;
}

void ThreadProcesses::expect_run(const std::function<void(comm::Processes&)>& body) {
  for (const std::string& thrown : run(body)) {
    EXPECT_EQ(thrown, "");
  }
}

namespace {

/// Child 0 has a socket to each of the others; all texts go through it.
class Child : public comm::Processes {
 public:
  Child(int32_t index, std::vector<int> sockets) : index_(index), sockets_(std::move(sockets)) {}
  int32_t size() const override { return static_cast<int32_t>(sockets_.size()); }
  int32_t index() const override { return index_; }
  std::vector<std::string> all_gather(const std::string& mine) override {
    std::vector<std::string> all(sockets_.size());
    if (index_ == 0) {
      all[0] = mine;
      for (size_t i = 1; i < all.size(); ++i) {
        all[i] = receive(i);
      }
      for (size_t i = 1; i < all.size(); ++i) {
        for (const std::string& text : all) {
          send(i, text);
        }
      }
      return all;
    }
    send(0, mine);
    for (std::string& text : all) {
      text = receive(0);
    }
    return all;
  }
  std::vector<std::string> exchange(std::vector<std::string> given) override {
    return exchange_by_gathering(*this, given);
  }

 private:
  void send(size_t to, const std::string& text) {
    const auto length = static_cast<uint64_t>(text.size());
    std::string message(reinterpret_cast<const char*>(&length), sizeof length);
    message += text;
    for (size_t done = 0; done < message.size();) {
      const ssize_t now =
          ::send(sockets_[to], message.data() + done, message.size() - done, MSG_NOSIGNAL);
      if (now <= 0) fail_run("processes", "rank {} is gone", to);
      done += static_cast<size_t>(now);
    }
  }
  std::string receive(size_t from) {
    uint64_t length = 0;
    get(from, reinterpret_cast<char*>(&length), sizeof length);
    std::string text(length, '\0');
    get(from, text.data(), text.size());
    return text;
  }
  void get(size_t from, char* to, size_t bytes) {
    while (bytes > 0) {
      const ssize_t now = ::recv(sockets_[from], to, bytes, 0);
      if (now <= 0) fail_run("processes", "rank {} is gone", from);
      to += now;
      bytes -= static_cast<size_t>(now);
    }
  }

  int32_t index_;
  std::vector<int> sockets_;  ///< of child 0: by index of the other; else only that of child 0
};

}  // namespace

ForkedProcesses::ForkedProcesses(int32_t size, const std::function<void(comm::Processes&)>& body) {
  const auto count = static_cast<size_t>(size);
  std::vector<int> first(count, -1), others(count, -1);
  for (size_t i = 1; i < count; ++i) {
    int pair[2];
    HOCKET_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no sockets");
    first[i] = pair[0];
    others[i] = pair[1];
  }
  const auto close_all = [&](const std::vector<int>& sockets, size_t but) {
    for (size_t i = 1; i < count; ++i) {
      if (i != but) {
        ::close(sockets[i]);
      }
    }
  };
  for (size_t i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      // Only its own ends stay open, so that the others notice its exit.
      std::vector<int> sockets = first;
      if (i == 0) {
        close_all(others, 0);
      } else {
        close_all(first, 0);
        close_all(others, i);
        sockets.assign(count, -1);
        sockets[0] = others[i];
      }
      int code = 0;
      try {
        Child self(static_cast<int32_t>(i), sockets);
        body(self);
      } catch (const Error&) {
        code = 3;
      }
      ::_exit(code);
    }
    children_.push_back(child);
  }
  close_all(first, 0);
  close_all(others, 0);
}

ForkedProcesses::~ForkedProcesses() {
  for (const pid_t child : children_) {
    if (child > 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
}

void ForkedProcesses::kill(int32_t index) const {
  ::kill(children_[static_cast<size_t>(index)], SIGKILL);
}

int ForkedProcesses::wait(int32_t index, std::chrono::seconds patience) {
  pid_t& child = children_[static_cast<size_t>(index)];
  const auto end = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "process " << index << " goes on after " << patience.count() << " s";
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      break;
    }
    ::usleep(1000);
  }
  child = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace hocket::test
