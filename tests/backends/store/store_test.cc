#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/backends/conformance/store_conformance.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tutti/backends/store/told_failure.h"

namespace tutti::test {
namespace {

std::function<std::shared_ptr<Store>()> memory_world() {
  return [store = make_memory_store()] { return store; };
}
std::function<std::shared_ptr<Store>()> file_world() {
  return [folder = std::make_shared<ScratchFolder>()] {
    return make_file_store(folder->inside("store"));
  };
}
INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance,
                         testing::Values(StoreMaker{"memory", memory_world}));
INSTANTIATE_TEST_SUITE_P(File, StoreConformance, testing::Values(StoreMaker{"file", file_world}));

TEST(PrefixStore, KeepsToItsKeys) {
  const auto root = make_memory_store();
  const auto store = make_prefix_store(make_prefix_store(root, "job/"), "0/");
  root->set("a", "foreign");
  EXPECT_FALSE(store->try_get("a"));
  store->set("a", "1");
  EXPECT_EQ(store->set_once("a", "2"), "1");
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->get("a", Deadline::after(0)), "1");
  EXPECT_EQ(root->try_get("job/0/a"), "1");
  EXPECT_EQ(root->try_get("job/0/n"), "3");
  EXPECT_EQ(root->try_get("a"), "foreign");
  store->erase("a");
  EXPECT_FALSE(root->try_get("job/0/a"));
}

TEST(FileStore, MakesAPrivateFolderAndSharesIt) {
  const ScratchFolder folder;
  const auto path = folder.inside("not/yet/there");
  make_file_store(path)->set("a", "1");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_EQ(make_file_store(path)->try_get("a"), "1");
}

TEST(FileStore, SaysWhenItsFolderIsGone) {
  const ScratchFolder folder;
  const auto path = folder.inside("store");
  const auto store = make_file_store(path);
  store->set("a", "1");
  std::filesystem::remove_all(path);
  const auto expect_unavailable = [&](const std::function<void()>& call) {
    expect_error(ErrorCode::unavailable, path, [&] { call(); });
  };
  expect_unavailable([&] { store->set("a", "2"); });
  expect_unavailable([&] { store->set_once("a", "2"); });
  expect_unavailable([&] { store->add("n", 2); });
  expect_unavailable([&] { store->try_get("a"); });
  expect_unavailable([&] { store->get("a", Deadline::after(10)); });
  EXPECT_THROW(make_file_store("/proc/no/such/place"), Error);
}

// A rank that is reported as the cause cannot confirm it. Its own error names the rank that
// reported it.
TEST(ToldFailure, WhoIsSaidToBeTheCauseNamesTheTeller) {
  const auto store = make_memory_store();
  const ToldFailure zero(*store, "here", 0, 3), one(*store, "here", 1, 3),
      two(*store, "here", 2, 3);
  const auto cause_of = [](const auto& call) { return error_of(call).rank(); };
  EXPECT_EQ(
      cause_of([&] { zero.fail(Error(ErrorCode::peer_lost, "rank 1 hung up").with_rank(1)); }), 1);
  EXPECT_EQ(cause_of([&] { one.look(); }), 0);
  EXPECT_EQ(cause_of([&] { two.look(); }), 1);
}

TEST(FileStore, LeavesNoScraps) {
  const ScratchFolder folder;
  const auto path = folder.inside("store");
  const auto store = make_file_store(path);
  for (int i = 0; i < 10; ++i) {
    store->set("a", std::to_string(i));
    store->set_once("b", std::to_string(i));
    store->add("n", 1);
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const auto name = entry.path().filename().string();
    EXPECT_TRUE(name[0] != '.' || name == ".lock") << name;
    ++files;
  }
  EXPECT_EQ(files, 4);
}

}  // namespace
}  // namespace tutti::test
