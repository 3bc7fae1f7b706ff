// The C interface on ranks that are threads, called from C (c_checks.c) and from C++.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/adapters_c/c_checks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/base/error.h"
#include "tutti/core/settings/version.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace {

void run_check(int size, c_check check) {
  tutti_store_t store;
  ASSERT_EQ(tutti_store_create(nullptr, &store), TUTTI_OK);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=] {
      tutti_comm_t comm;
      const char* settings[] = {"fusion_bytes=64K", "connect_timeout=20"};
      const int status = tutti_create_thread(rank, size, store, settings, 2, &comm);
      ASSERT_EQ(status, TUTTI_OK) << tutti_last_error();
      if (const char* complaint = check(comm))
        ADD_FAILURE() << "rank " << rank << " of " << size << ": " << complaint;
      tutti_destroy(comm);
    });
  for (auto& rank : ranks) rank.join();
  tutti_store_destroy(store);
}

void run_check(c_check check) {
  for (const int size : {1, 2, 4}) run_check(size, check);
}

TEST(CInterface, Reductions) { run_check(check_reductions); }
TEST(CInterface, StructsOfOldAndNewPrograms) { run_check(check_struct_sizes); }
TEST(CInterface, CallsOfOldAndNewPrograms) { run_check(check_call_sizes); }
TEST(CInterface, FieldsWithoutAMeaningAreRefused) { run_check(check_call_fields); }
TEST(CInterface, CallsOfAGroupAreAlike) { run_check(check_groups); }
TEST(CInterface, ResultsAreInPlaceOrWhereTheCallSays) { run_check(check_places_of_results); }
TEST(CInterface, BlockingCallsAndDeclaredNames) { run_check(check_fast_paths); }
TEST(CInterface, Arenas) { run_check(check_arena); }
TEST(CInterface, MovingData) { run_check(check_moving_data); }
TEST(CInterface, WorksAndDuplicateNames) { run_check(check_works); }
TEST(CInterface, SplitAndJoin) {
  for (const int size : {2, 4}) run_check(size, check_split_and_join);
}
TEST(CInterface, BadArgumentsAreStatusesWithTexts) { run_check(check_refusals); }
TEST(CInterface, AMismatchIsTheSameOnEveryRankAndHarmsNothing) { run_check(check_mismatch); }
TEST(CInterface, APlaceAmongAllRanksAndOnTheHost) { run_check(check_place); }
TEST(CInterface, TheOthersGoOnWithoutARankThatLeft) {
  for (const int size : {2, 4}) run_check(size, check_shrink);
}

// Alone, with settings of the program's own: the timeline is a file when the communicator has gone.
TEST(CInterface, SettingsOnTopOfTheEnvironments) {
  const tutti::test::ScratchFolder folder;
  const std::string file = folder.path() + "/trace.json", setting = "timeline=" + file;
  const char* settings[] = {setting.c_str(), "log=error"};
  tutti_comm_t comm;
  ASSERT_EQ(tutti_create_with(settings, 2, &comm), TUTTI_OK) << tutti_last_error();
  EXPECT_EQ(check_place(comm), nullptr);
  EXPECT_EQ(tutti_size(comm), 1);
  double value = 5;
  EXPECT_EQ(tutti_allreduce_value(comm, "told", &value, TUTTI_SUM), TUTTI_OK);
  tutti_destroy(comm);
  std::ifstream trace(file);
  const std::string text(std::istreambuf_iterator<char>(trace), {});
  EXPECT_NE(text.find("(\\\"told\\\")"), text.npos) << text;
  settings[1] = "log=loud";
  EXPECT_EQ(tutti_create_with(settings, 2, &comm), TUTTI_INVALID_ARGUMENT);
  EXPECT_EQ(comm, nullptr);
  EXPECT_NE(std::string(tutti_last_error()).find("TUTTI_LOG=loud"), std::string::npos);
}

TEST(CInterface, ItsVersionIsTheLibrarys) { EXPECT_EQ(tutti_version(), tutti::kVersion); }

TEST(CInterface, GroupedSparseAndBlockingForms) { run_check(check_more_forms); }
TEST(CInterface, EveryKindByHandle) { run_check(check_handles); }
TEST(CInterface, OutOfPlaceRawAndSharedMemory) { run_check(check_more_places); }
TEST(CInterface, CallbacksGetTheStatusAndItsText) { run_check(check_callbacks); }
TEST(CInterface, ClosingEndsAWaitAndWhatIsPending) { run_check(check_closing_ends_a_wait); }
TEST(CInterface, BytesOfAnyNumber) { run_check(check_bytes); }
TEST(CInterface, ATimelineOfAllRanks) { run_check(check_timeline); }
TEST(CInterface, StatisticsOfOldAndNewPrograms) { run_check(check_statistics); }

TEST(CInterface, FieldsOfStructsThatGrowLieWhereTheyLay) { EXPECT_EQ(c_layout_holds(), 1); }

TEST(CInterface, ItsNumbersAreTheLibrarys) {
  EXPECT_EQ(TUTTI_BOOL, static_cast<int>(tutti::DataType::boolean));
  EXPECT_EQ(TUTTI_F64, static_cast<int>(tutti::DataType::f64));
  EXPECT_EQ(TUTTI_BF16, static_cast<int>(tutti::DataType::bf16));
  EXPECT_EQ(TUTTI_U64, static_cast<int>(tutti::DataType::u64));
  EXPECT_EQ(TUTTI_SUM, static_cast<int>(tutti::ReduceOp::sum));
  EXPECT_EQ(TUTTI_BOR, static_cast<int>(tutti::ReduceOp::bor));
  EXPECT_EQ(TUTTI_BXOR, static_cast<int>(tutti::ReduceOp::bxor));
  EXPECT_EQ(TUTTI_RAW, static_cast<int>(tutti::DataType::raw));
  EXPECT_EQ(TUTTI_INVALID_ARGUMENT, static_cast<int>(tutti::ErrorCode::invalid_argument));
  EXPECT_EQ(TUTTI_INTERNAL, static_cast<int>(tutti::ErrorCode::internal));
  EXPECT_EQ(TUTTI_PEER_LEFT, static_cast<int>(tutti::ErrorCode::peer_left));
}

TEST(CInterface, EachThreadHasItsOwnLastError) {
  EXPECT_EQ(tutti_work_wait(nullptr), TUTTI_INVALID_ARGUMENT);
  std::string other = "not asked";
  std::thread([&] { other = tutti_last_error(); }).join();
  EXPECT_EQ(other, "");
  EXPECT_NE(std::string(tutti_last_error()), "");
  EXPECT_EQ(tutti_last_error_rank(), -1);
}

}  // namespace
