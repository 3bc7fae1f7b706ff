#include "tutti/core/settings/options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "tests/support/expect_error.h"
#include "tutti/backends/backend.h"
#include "tutti/base/error.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/settings/store_options.h"

namespace tutti {
namespace {

using test::refusal;
using testing::AllOf;
using testing::HasSubstr;

Options read(const Environment& environment) {
  Options options;
  read_settings(environment, options);
  return options;
}

TEST(Settings, AreRead) {
  const auto options = read({{"TUTTI_JOB", "j"},
                             {"TUTTI_INTERFACE", "eth0"},
                             {"TUTTI_TCP_SOCKETS", "4"},
                             {"TUTTI_TCP_CONGESTION", "reno"},
                             {"TUTTI_HOST", "a"},
                             {"TUTTI_BACKEND", "tcp"},
                             {"TUTTI_BACKEND_PATH", "/a:/b c"},
                             {"TUTTI_ALGORITHMS", "allreduce:0-inf=ring"},
                             {"TUTTI_PROBE", "/a folder/networks"},
                             {"TUTTI_DETERMINISM", "rank_order"},
                             {"TUTTI_SEGMENT_BYTES", "256K"},
                             {"TUTTI_FUSION_BYTES", "64M"},
                             {"TUTTI_PARTITION_BYTES", "1G"},
                             {"TUTTI_CACHE_CAPACITY", "0"},
                             {"TUTTI_REPLAY", "0"},
                             {"TUTTI_CHECK_MEMORY", "1"},
                             {"TUTTI_MIXED_DEVICES", "1"},
                             {"TUTTI_REPLAY_AFTER", "7"},
                             {"TUTTI_CONNECT_TIMEOUT", "1.5"},
                             {"TUTTI_PEER_TIMEOUT", "2"},
                             {"TUTTI_OPERATION_TIMEOUT", "3"},
                             {"TUTTI_STALL_WARNING", "4"},
                             {"TUTTI_CLOSE_TIMEOUT", "0.25"},
                             {"TUTTI_TIMELINE", "run.json"},
                             {"TUTTI_LOG", "debug"},
                             {"TUTTI_STORE", "tcp://[::1]:4711"},
                             {"TUTTI_SERVE_STORE", "1"},
                             {"NO_TUTTI", "x"}});
  EXPECT_EQ(options.job, "j");
  EXPECT_EQ(options.network_interface, "eth0");
  EXPECT_EQ(options.tcp_sockets, 4);
  EXPECT_EQ(options.tcp_congestion, "reno");
  EXPECT_EQ(options.host, "a");
  EXPECT_EQ(options.backend, "tcp");
  EXPECT_EQ(backend_folders(options), (std::vector<std::string>{"/a", "/b c"}));
  EXPECT_EQ(options.algorithms, "allreduce:0-inf=ring");
  EXPECT_EQ(options.probe, "/a folder/networks");
  EXPECT_EQ(options.determinism, Determinism::rank_order);
  EXPECT_EQ(options.segment_bytes, 256 << 10);
  EXPECT_EQ(options.fusion_bytes, 64 << 20);
  EXPECT_EQ(options.partition_bytes, 1 << 30);
  EXPECT_EQ(options.cache_capacity, 0);
  EXPECT_FALSE(options.replay);
  EXPECT_TRUE(options.check_memory);
  EXPECT_TRUE(options.mixed_devices);
  EXPECT_EQ(options.replay_after, 7);
  EXPECT_EQ(options.connect_timeout, 1.5);
  EXPECT_EQ(options.peer_timeout, 2);
  EXPECT_EQ(options.operation_timeout, 3);
  EXPECT_EQ(options.stall_warning, 4);
  EXPECT_EQ(options.close_timeout, 0.25);
  EXPECT_EQ(options.timeline, "run.json");
  EXPECT_EQ(options.log_level, LogLevel::debug);
  EXPECT_EQ(options.store, "tcp://[::1]:4711");
  EXPECT_TRUE(options.serve_store);
}

TEST(Settings, RefuseGarbageInOneLine) {
  const auto line = [](const std::string& variable, const std::string& text) -> std::string {
    const auto error = test::error_of([&] { read({{variable, text}}); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  };
  EXPECT_EQ(line("TUTTI_FUSION_BYTES", "64MBB"),
            "TUTTI_FUSION_BYTES=64MBB is not a size (expected digits and an optional K, M or G); "
            "see `tutti-run --options`.");
  EXPECT_EQ(line("TUTTI_DETERMINISM", "rank-order"),
            "TUTTI_DETERMINISM=rank-order is not one of fastest, run, rank_order; see `tutti-run "
            "--options`.");
  EXPECT_EQ(line("TUTTI_STORE", "localhost:80"),
            "TUTTI_STORE=localhost:80 is not the address of a store (expected tcp://host:port or "
            "file:///folder); see `tutti-run --options`.");
  for (const auto& [variable, texts] : std::map<std::string, std::vector<std::string>>{
           {"TUTTI_RANK", {"", "-1", "1.5", "x", "99999999999"}},
           {"TUTTI_SIZE", {"0", "four"}},
           {"TUTTI_FUSION_BYTES", {"", "-1", "1T", "K", "1 M", "99999999G"}},
           {"TUTTI_BACKEND_PATH", {"plugins", "/a:", ":/a", "/a:./b"}},
           {"TUTTI_SEGMENT_BYTES", {"0", "1"}},
           {"TUTTI_REPLAY", {"", "yes", "2", "true"}},
           {"TUTTI_REPLAY_AFTER", {"0"}},
           {"TUTTI_TCP_SOCKETS", {"0", "65", "two"}},
           {"TUTTI_CONNECT_TIMEOUT", {"0", "-1", "inf", "nan", "1s", ""}},
           {"TUTTI_LOG", {"loud", "3", ""}},
           {"TUTTI_PROBE", {"", "on", "Auto", "networks", "./networks", "/folder/", "/a\n/b"}},
           {"TUTTI_STORE",
            {"", "tcp://", "tcp://h", "tcp://:1", "tcp://h:0", "tcp://h:65536", "tcp://h:x",
             "file://relative", "http://h:1"}}})
    for (const auto& text : texts)
      EXPECT_THAT(line(variable, text), HasSubstr(variable + "=" + text + " is not")) << text;
}

TEST(Settings, SayWhereFiguresOfTheNetworkAreKept) {
  Options options{.rank = 0, .size = 1};
  options.probe_folder = "/cache/tutti";
  EXPECT_EQ(probe_settings(options).mode, Probe::Mode::when_unknown);
  EXPECT_EQ(probe_settings(options).file, "/cache/tutti/networks");
  options.probe = "always";
  EXPECT_EQ(probe_settings(options).mode, Probe::Mode::always);
  EXPECT_EQ(probe_settings(options).file, "/cache/tutti/networks");
  options.probe_folder.clear();
  EXPECT_EQ(probe_settings(options).file, "");
  options.probe = "/tmp/networks";
  EXPECT_EQ(probe_settings(options).mode, Probe::Mode::when_unknown);
  EXPECT_EQ(probe_settings(options).file, "/tmp/networks");
  options.probe = "off";
  EXPECT_EQ(probe_settings(options).mode, Probe::Mode::off);
  options.probe = "of";
  EXPECT_EQ(refusal([&] { check_options(options); }),
            "rank 0: TUTTI_PROBE=of is not one of auto, always, off or a file (expected its "
            "absolute path, /...)");
}

TEST(Settings, WhatNcclIsToldIsReadWordByWord) {
  const auto line = [](const std::string& text) {
    return refusal([&] { read({{"TUTTI_NCCL_CONFIG", text}}); });
  };
  EXPECT_EQ(read({{"TUTTI_NCCL_CONFIG", "min_ctas=4,max_ctas=16,net_name=Socket"}}).nccl_config,
            "min_ctas=4,max_ctas=16,net_name=Socket");
  EXPECT_EQ(read({{"TUTTI_NCCL_CONFIG", ""}}).nccl_config, "");
  EXPECT_EQ(line("min_ctas=four"),
            "TUTTI_NCCL_CONFIG=min_ctas=four: min_ctas must be a number from 1 to 64, but got "
            "\"four\"; see docs/backends.md, nccl");
  for (const auto& [text, why] : std::map<std::string, std::string>{
           {"min_cta=4", "\"min_cta\" is not a setting (did you mean min_ctas?)"},
           {"blocking=1", "\"blocking\" is not a setting (expected NAME=VALUE of net_name, cga_"},
           {"max_ctas", "max_ctas must be a number from 1 to 64, but got \"\""},
           {"max_ctas=65", "max_ctas must be a number from 1 to 64, but got \"65\""},
           {"max_ctas=4,,", "\"\" is not a setting"},
           {"max_ctas=4,max_ctas=5", "max_ctas comes twice"},
           {"min_ctas=8,max_ctas=4", "min_ctas=8 is more than max_ctas=4"},
           {"net_name=", "net_name must be the name of one of NCCL's networks"},
           {"net_name=a b", "but got \"a b\""}})
    EXPECT_THAT(line(text), HasSubstr(why)) << text;
  Options options;
  options.rank = 1;
  options.size = 2;
  options.local_size = 2;
  options.store_object = make_memory_store();
  options.nccl_config = "split_share=2";
  EXPECT_EQ(refusal([&] { check_options(options); }),
            "rank 1: TUTTI_NCCL_CONFIG=split_share=2: split_share must be a number from 0 to 1, "
            "but got \"2\"; see docs/backends.md, nccl");
}

TEST(Settings, BackendsAskForTheirOwnByName) {
  Options options;
  options.tcp_sockets = 4;
  options.backend_library = "/opt/libnccl.so.2";
  Context context;
  context.settings = backend_settings(options);
  EXPECT_EQ(context.setting("TUTTI_TCP_SOCKETS"), "4");
  EXPECT_EQ(context.setting("TUTTI_BACKEND_LIBRARY"), "/opt/libnccl.so.2");
  EXPECT_EQ(context.setting("TUTTI_TCP_CONGESTION"), "");
  EXPECT_EQ(refusal([&] { context.setting("TUTTI_TCP_SOCKET"); }),
            "a backend asks for TUTTI_TCP_SOCKET, which is not a setting of backends (did it mean "
            "TUTTI_TCP_SOCKETS?)");
  EXPECT_EQ(refusal([&] { context.setting("TUTTI_REPLAY"); }),
            "a backend asks for TUTTI_REPLAY, which is not a setting of backends");
}

TEST(Settings, UnknownOnesOfferTheNearest) {
  EXPECT_EQ(refusal([] {
              read({{"TUTTI_FUSION_BITES", "1"}});
            }),
            "TUTTI_FUSION_BITES is not a setting of Tutti (did you mean TUTTI_FUSION_BYTES?); see "
            "`tutti-run --options`.");
  EXPECT_EQ(refusal([] {
              read({{"TUTTI_ZZZZZZZZZZZZZZZZZ", "1"}});
            }),
            "TUTTI_ZZZZZZZZZZZZZZZZZ is not a setting of Tutti; see `tutti-run --options`.");
}

TEST(Settings, DescribeThemselves) {
  auto options = read({{"TUTTI_FUSION_BYTES", "8M"}});
  options.replay = false;
  options.secret = "hush";
  const auto rows = describe_options(options);
  const auto row = [&](const std::string& variable) {
    return *std::find_if(rows.begin(), rows.end(),
                         [&](const OptionRow& each) { return each.variable == variable; });
  };
  EXPECT_EQ(row("TUTTI_FUSION_BYTES").default_value, "4M");
  EXPECT_EQ(row("TUTTI_FUSION_BYTES").value, "8M");
  EXPECT_EQ(row("TUTTI_FUSION_BYTES").source, "environment");
  EXPECT_EQ(row("TUTTI_FUSION_BYTES").unit, "bytes");
  EXPECT_EQ(row("TUTTI_REPLAY").source, "program");
  EXPECT_EQ(row("TUTTI_LOG").value, "warning");
  EXPECT_EQ(row("TUTTI_LOG").source, "default");
  EXPECT_EQ(row("TUTTI_SECRET").value, "(set)");
  for (const auto& each : rows) {
    EXPECT_FALSE(each.meaning.empty()) << each.variable;
    EXPECT_FALSE(each.unit.empty()) << each.variable;
    // The printed default can be read back.
    if (!each.default_value.empty()) {
      EXPECT_NO_THROW(read({{each.variable, each.default_value}})) << each.variable;
    }
  }
}

TEST(Settings, EveryVariableOfTheHeaderIsARow) {
  std::ifstream header(TUTTI_SOURCE_DIR "/core/settings/options.h");
  ASSERT_TRUE(header);
  const std::string text(std::istreambuf_iterator<char>(header), {});
  std::set<std::string> rows, named;
  for (const auto& row : describe_options({})) rows.insert(row.variable);
  for (size_t at = text.find("TUTTI_"); at != text.npos; at = text.find("TUTTI_", at + 1)) {
    const auto end = text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", at);
    if (const auto name = text.substr(at, end - at); name != "TUTTI_") named.insert(name);
  }
  EXPECT_EQ(named, rows);
}

TEST(Options, MustFitEachOther) {
  const auto line = [](const std::function<void(Options&)>& change) {
    auto options = Options::thread_rank(1, 2, make_memory_store());
    change(options);
    return refusal([&] { check_options(options); });
  };
  EXPECT_NO_THROW(check_options(Options::thread_rank(1, 2, make_memory_store())));
  EXPECT_EQ(line([](Options& o) { o.rank = 2; }),
            "rank 2 is not a rank of 2 (must be from 0 to 1)");
  EXPECT_THAT(line([](Options& o) { o.rank = -1; }), HasSubstr("rank -1"));
  EXPECT_THAT(line([](Options& o) { o.size = 0; }), HasSubstr("the size is 0"));
  EXPECT_THAT(line([](Options& o) { o.local_rank = 2; }), HasSubstr("local rank 2"));
  EXPECT_THAT(line([](Options& o) { o.local_size = 3; }),
              HasSubstr("more than the 2 ranks of the job"));
  EXPECT_THAT(line([](Options& o) { o.store_object.reset(); }), HasSubstr("there is no store"));
  EXPECT_THAT(line([](Options& o) { o.serve_store = true, o.store = "file:///x"; }),
              HasSubstr("not at \"file:///x\""));
  EXPECT_THAT(line([](Options& o) { o.segment_bytes = 0; }), HasSubstr("segment"));
  EXPECT_THAT(line([](Options& o) { o.tcp_sockets = 65; }), HasSubstr("not 65"));
  EXPECT_THAT(line([](Options& o) { o.job.clear(); }), HasSubstr("TUTTI_JOB"));
}

TEST(Options, ThreadRanksAreOneHost) {
  const auto store = make_memory_store();
  const auto options = Options::thread_rank(2, 3, store);
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.local_rank, 2);
  EXPECT_EQ(options.local_size, 3);
  EXPECT_EQ(options.store_object, store);
  EXPECT_THAT(refusal([&] { Options::thread_rank(3, 3, store); }), HasSubstr("rank 3"));
}

}  // namespace
}  // namespace tutti
