// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Exchanges of processes outside of steps, and their reports when one fails, hangs or exits.
#include "comm/connection.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "base/error.h"
#include "tests/comm/transport_util.h"

namespace hocket::comm {
namespace {

using std::chrono::milliseconds;
using test::connections;

/// Runs a function per rank, each on its own thread; returns the errors they threw.
std::vector<std::string> on_each(std::vector<std::shared_ptr<Connection>>& list,
                                 const std::function<void(Connection&)>& run) {
  std::vector<std::string> errors(list.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < list.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run(*list[rank]);
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

Message message_of(int64_t bytes) {
  Message message(bytes);
  std::fill_n(message.data.get(), bytes, std::byte{1});
  return message;
}

// Freed and reallocated pages cost more than the copy of the message.
TEST(Message, MemoryOfLargeMessagesIsPooled) {
  const std::byte* first = nullptr;
  {
    const Message message(int64_t{3} << 20);
    first = message.data.get();
  }
  Message again(int64_t{3} << 20);
  EXPECT_EQ(again.data.get(), first);
  const Message beside(int64_t{3} << 20);
  EXPECT_NE(beside.data.get(), first);
  const Message moved = std::move(again);
  EXPECT_EQ(moved.data.get(), first);
  EXPECT_EQ(again.data, nullptr);  // NOLINT: a moved-from message is empty by contract
  // Memory beyond the previous peak goes back to the system.
  std::vector<Message> many;
  for (int64_t i = 0; i < 40; ++i) {
    many.push_back(message_of((int64_t{4} << 20) + i));
  }
  many.clear();
  EXPECT_EQ(Message(0).bytes, 0);
}

TEST(Connection, AllGatherReturnsTheTextsOfAllRanks) {
  auto list = connections(4, milliseconds(10'000));
  const auto errors = on_each(list, [](Connection& connection) {
    const std::string mine(static_cast<size_t>(connection.index()) * 1000, 'x');
    const std::vector<std::string> all = connection.all_gather(mine);
    ASSERT_EQ(all.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(all[i].size(), i * 1000);
    }
    EXPECT_EQ(connection.broadcast(connection.index() == 0 ? "first" : "other"), "first");
    connection.leave();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
}

/// Returns `bytes` without equal neighbours, different for every pair of ranks.
std::string text_of(int64_t bytes, int32_t from, int32_t to) {
  std::string text(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 7 + static_cast<size_t>(from) * 31 + static_cast<size_t>(to));
  }
  return text;
}

// The first message of a text holds 248 bytes of it, and a second one the rest, if any.
TEST(Connection, TextsOfAnyLengthArrive) {
  constexpr int32_t kRanks = 3;
  auto list = connections(kRanks, milliseconds(10'000));
  const auto errors = on_each(list, [](Connection& connection) {
    const int32_t me = connection.index();
    for (const int64_t bytes : {0, 1, 247, 248, 249, 495, 496, 497, 100'000}) {
      const auto length = [&](int32_t rank) { return bytes + rank; };
      const std::vector<std::string> all = connection.all_gather(text_of(length(me), me, 0));
      std::vector<std::string> given;
      for (int32_t to = 0; to < kRanks; ++to) {
        given.push_back(text_of(length(to), me, to));
      }
      const std::vector<std::string> got = connection.exchange(given);
      ASSERT_EQ(all.size(), static_cast<size_t>(kRanks));
      ASSERT_EQ(got.size(), static_cast<size_t>(kRanks));
      for (int32_t from = 0; from < kRanks; ++from) {
        EXPECT_EQ(all[static_cast<size_t>(from)], text_of(length(from), from, 0)) << bytes;
        EXPECT_EQ(got[static_cast<size_t>(from)], text_of(length(me), from, me)) << bytes;
      }
    }
    connection.leave();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
}

TEST(Connection, AllEndWithTheErrorOfTheFailedRank) {
  auto list = connections(3, milliseconds(20'000));
  const auto errors = on_each(list, [](Connection& connection) {
    if (connection.index() == 2) {
      connection.fail("rank 2: linear L3: no memory");
      return;
    }
    std::byte byte{};
    connection.receive(&byte, 1, 1 - connection.index(), 0);
  });
  EXPECT_NE(errors[0].find("rank 2: linear L3: no memory"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 2: linear L3: no memory"), std::string::npos) << errors[1];
}

TEST(Connection, ADeadRankIsReportedWithItsLastTask) {
  auto list = connections(3, milliseconds(20'000));
  list[1]->watch(
      &list, [] { return std::string("attention L7 mb2 forward"); }, nullptr);
  std::this_thread::sleep_for(milliseconds(500));
  const auto errors = on_each(list, [&](Connection& connection) {
    if (connection.index() == 1) {
      list[1].reset();
      return;
    }
    std::byte byte{};
    connection.receive(&byte, 1, connection.index() == 0 ? 1 : 0, 0);
  });
  for (int rank : {0, 2}) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    EXPECT_NE(error.find("rank 1 "), std::string::npos) << error;
    EXPECT_NE(error.find("attention L7 mb2 forward"), std::string::npos) << error;
    EXPECT_NE(error.find("exited without reporting an error"), std::string::npos) << error;
  }
}

TEST(Connection, TheEndOfAWaitForChainIsBlamed) {
  auto list = connections(4, milliseconds(900));
  list[3]->watch(
      &list, [] { return std::string("router L1 mb0 forward"); }, nullptr);
  const auto errors = on_each(list, [&](Connection& connection) {
    if (connection.index() == 3) {
      std::this_thread::sleep_for(milliseconds(2500));
      return;
    }
    // The first to wait is the first to give up.
    std::this_thread::sleep_for(milliseconds(100 * connection.index()));
    std::byte byte{};
    connection.receive(&byte, 1, connection.index() + 1, 0);
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_NE(errors[rank].find("rank 3 "), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find("router L1 mb0 forward"), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find("has sent nothing for 0.9 s"), std::string::npos) << errors[rank];
    EXPECT_EQ(errors[rank], errors[0]);
  }
}

// The last note of a stopped process is stale: the rank that it names may have sent its message
// since.
TEST(Connection, ARankStoppedDuringAWaitIsBlamed) {
  auto list = connections(4, milliseconds(900));
  std::atomic<bool> stopped{false};
  list[2]->watch(
      &list,
      [&] {
        while (stopped) {
          std::this_thread::sleep_for(milliseconds(10));
        }
        return std::string("router L1 mb0 forward");
      },
      nullptr);
  const auto errors = on_each(list, [&](Connection& connection) {
    std::byte byte{};
    switch (connection.index()) {
      case 0:
        std::this_thread::sleep_for(milliseconds(600));
        connection.receive(&byte, 1, 2, 0);
        break;
      case 2:
        connection.receive(&byte, 1, 3, 0);
        break;
      case 3:
        std::this_thread::sleep_for(milliseconds(500));
        stopped = true;
        std::this_thread::sleep_for(milliseconds(200));
        connection.send(message_of(1), 2, 0);
        break;
    }
  });
  stopped = false;
  EXPECT_EQ(errors[2], "");
  EXPECT_NE(errors[0].find("rank 2 (on host"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("router L1 mb0 forward"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("rank 0 waits for rank 2"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[0].find("rank 3"), std::string::npos) << errors[0];
}

// Rank 0 hosts the shared table. Without the table, every rank reaches the same verdict by itself.
TEST(Connection, AStoppedRankZeroIsBlamed) {
  const auto silent = std::make_shared<std::atomic<bool>>(false);
  auto list = connections(4, milliseconds(2000), silent);
  list[0]->watch(
      &list, [] { return std::string("router L1 mb0 forward"); }, nullptr);
  std::this_thread::sleep_for(milliseconds(600));
  *silent = true;
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = on_each(list, [&](Connection& connection) {
    const int32_t rank = connection.index();
    if (rank == 0) {
      std::this_thread::sleep_for(milliseconds(6000));
      *silent = false;  // continues
      return;
    }
    // Rank 3 waits for no other rank, and is stopped all the same.
    if (rank == 3) {
      std::string stopped;
      std::mutex mutex;
      connection.watch(&stopped, nullptr, [&](const std::string& reason) {
        std::lock_guard lock(mutex);
        stopped = reason;
      });
      std::this_thread::sleep_for(milliseconds(5000));
      connection.unwatch(&stopped);
      std::lock_guard lock(mutex);
      throw Error(Error::Kind::kRun, "watch", stopped);
    }
    try {
      std::byte byte{};
      connection.receive(&byte, 1, rank - 1, 0);
    } catch (...) {
      EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(5000));
      EXPECT_EQ(connection.reports_failure(), rank == 1);
      throw;
    }
  });
  for (const size_t rank : {1, 2, 3}) {
    EXPECT_NE(errors[rank].find("rank 0 (on host"), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find("router L1 mb0 forward"), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find("has not answered for "), std::string::npos) << errors[rank];
  }
}

// The host of the table may answer late, for example while it swaps.
TEST(Connection, AShortSilenceOfTheTableIsHarmless) {
  const auto silent = std::make_shared<std::atomic<bool>>(false);
  auto list = connections(2, milliseconds(6000), silent);
  const auto errors = on_each(list, [&](Connection& connection) {
    std::byte byte{};
    if (connection.index() == 0) {
      *silent = true;
      std::this_thread::sleep_for(milliseconds(2500));
      *silent = false;
      connection.send(message_of(1), 1, 0);
    } else {
      connection.receive(&byte, 1, 0, 0);
    }
    connection.leave();
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST(Connection, TheRankMissingFromACollectiveIsBlamed) {
  auto list = connections(4, milliseconds(900));
  list[2]->watch(
      &list, [] { return std::string("router L1 mb0 forward"); }, nullptr);
  const std::vector<int32_t> members = {0, 1, 2, 3};
  const auto errors = on_each(list, [&](Connection& connection) {
    CollectiveGroup& group = connection.group(members, 7);
    if (connection.index() == 2) {
      std::this_thread::sleep_for(milliseconds(4500));
      return;
    }
    const auto memory = std::make_shared<Message>(8);
    std::fill_n(memory->data.get(), 8, std::byte{0});
    connection.wait(*group.all_reduce({memory, memory->data.get(), 8}, ReduceType::f64, false),
                    members);
  });
  for (size_t rank : {0, 1, 3}) {
    EXPECT_NE(errors[rank].find("rank 2 "), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find("router L1 mb0 forward"), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find("has sent nothing for 0.9 s"), std::string::npos) << errors[rank];
  }
}

TEST(Connection, MessagesOfOneTagArriveInOrder) {
  auto list = connections(2, milliseconds(10'000));
  const auto errors = on_each(list, [](Connection& connection) {
    for (int64_t i = 1; i <= 50; ++i) {
      if (connection.index() == 0) {
        connection.send(message_of(i), 1, 7);
      } else {
        std::vector<std::byte> into(static_cast<size_t>(i));
        connection.receive(into.data(), i, 0, 7);
        EXPECT_EQ(into.back(), std::byte{1});
      }
    }
    connection.leave();
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

}  // namespace
}  // namespace hocket::comm
