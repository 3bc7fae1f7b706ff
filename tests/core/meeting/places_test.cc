// The records that ranks leave in the store before they know each other.

#include "tutti/core/meeting/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

std::string place_text(const std::string& pid, const std::string& rank, const std::string& call) {
  return "boot\nn1\n" + pid + "\n" + rank + "\n0\n0 1\nmachine\n4026531836\n" + call +
         "\n0000:18:00.0";
}

TEST(Places, ComeBack) {
  PlaceRecord record;
  record.place.host = "boot/1";
  record.place.host_name = "n1";
  record.place.pid = 4711;
  record.place.world_rank = 3;
  record.place.incarnation = 2;
  record.place.cores = {0, 5};
  record.place.machine = "boot";
  record.place.pid_space = 4026531836;
  record.place.device = "0000:18:00.0";
  record.call = int64_t{1} << 40;
  const auto back = decode_place(3, encode_place(record));
  EXPECT_EQ(back.place.host, record.place.host);
  EXPECT_EQ(back.place.host_name, record.place.host_name);
  EXPECT_EQ(back.place.pid, record.place.pid);
  EXPECT_EQ(back.place.world_rank, record.place.world_rank);
  EXPECT_EQ(back.place.incarnation, record.place.incarnation);
  EXPECT_EQ(back.place.cores, record.place.cores);
  EXPECT_EQ(back.place.machine, record.place.machine);
  EXPECT_EQ(back.place.pid_space, record.place.pid_space);
  EXPECT_EQ(back.place.device, record.place.device);
  EXPECT_EQ(back.call, record.call);
}

// The first process of each container has the process id 1.
TEST(Places, ProcessesOfTwoNamespacesAreNotOneProcess) {
  const auto own = own_place({}, {});
  EXPECT_GT(own.pid_space, 0);
  auto other = own;
  EXPECT_TRUE(own.shares_pids(other));
  other.pid_space += 1;
  EXPECT_FALSE(own.shares_pids(other));
  other = own;
  other.machine = "another boot";
  EXPECT_FALSE(own.shares_pids(other));
}

// 2^32 - 1 used to be read as the process id -1, which stands for all processes.
TEST(Places, NumbersThatNoProcessAndNoRankHasAreRefused) {
  EXPECT_EQ(decode_place(1, place_text("4711", "1", "7")).place.pid, 4711);
  for (const auto& text :
       {place_text("4294967295", "1", "7"), place_text("4711", "4294967297", "7"),
        place_text("-1", "1", "7"), place_text("4711", "1", "x"), place_text("4711", "1", "7\n"),
        std::string()}) {
    EXPECT_EQ(
        test::expect_error(ErrorCode::corrupt_data, "", [&] { decode_place(1, text); }).rank(), 1);
  }
}

}  // namespace
}  // namespace tutti
