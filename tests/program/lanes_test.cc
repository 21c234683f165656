// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "program/program.h"

namespace hocket::program {
namespace {

TEST(Lanes, ReceivesHaveLanesOfTheirOwnInEitherOrder) {
  for (const Order order : {Order::messages, Order::collectives}) {
    EXPECT_EQ(link_lane(comm::Role::receive, false, order), Lane::intra_rx);
    EXPECT_EQ(link_lane(comm::Role::receive, true, order), Lane::inter_rx);
    EXPECT_EQ(link_lane(comm::Role::collective, false, order), Lane::intra);
    EXPECT_EQ(link_lane(comm::Role::between, true, order), Lane::inter);
  }
}

TEST(Lanes, ASendKeepsTheOrderOfMessagesOrOfCollectives) {
  EXPECT_EQ(link_lane(comm::Role::send, false), Lane::intra_tx);
  EXPECT_EQ(link_lane(comm::Role::send, true), Lane::inter_tx);
  EXPECT_EQ(link_lane(comm::Role::send, false, Order::collectives), Lane::intra);
  EXPECT_EQ(link_lane(comm::Role::send, true, Order::collectives), Lane::inter);
}

TEST(Lanes, ASendStaysInTheOrderOfItsLane) {
  for (const bool leaves_node : {false, true}) {
    for (const Order order : {Order::messages, Order::collectives}) {
      const Lane lane = link_lane(comm::Role::send, leaves_node, order);
      EXPECT_EQ(order_of(lane), order);
      EXPECT_EQ(link_lane(comm::Role::send, leaves_node, order_of(lane)), lane);
      EXPECT_EQ(is_between_nodes(lane), leaves_node);
    }
  }
  EXPECT_EQ(order_of(Lane::compute), Order::messages);
}

}  // namespace
}  // namespace hocket::program
