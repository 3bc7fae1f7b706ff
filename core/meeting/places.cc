#include "tutti/core/meeting/places.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/process/cores.h"
#include "tutti/base/text.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/settings/version.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

namespace {

// Returns the id of the current boot of this machine. Only ranks with the same boot id and the same
// network namespace can share memory and a Unix socket.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return boot;
}

int64_t namespace_inode(const char* file) {
  struct stat status {};
  return ::stat(file, &status) == 0 ? static_cast<int64_t>(status.st_ino) : 0;
}

std::string host_identity(const Options& options) {
  if (!options.host.empty()) return options.host;
  return fmt::format("{}/{}", boot_id(), namespace_inode("/proc/self/ns/net"));
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Puts two ranks and their values into `format`, for example "rank 0 HAVE A, rank 1 HAVE B". The
// lower rank comes first, so that all ranks report the same text.
std::string side_by_side(const std::string& format, int theirs, const std::string& a, int ours,
                         const std::string& b) {
  const bool first = theirs < ours;
  return fmt::format(fmt::runtime(format), first ? theirs : ours, first ? a : b,
                     first ? ours : theirs, first ? b : a);
}

}  // namespace

Place own_place(const Options& options, const LaunchedRank& launched) {
  Place place;
  place.host = host_identity(options);
  place.host_name = host_name();
  place.pid = static_cast<int>(::getpid());
  place.world_rank = launched.rank;
  place.incarnation = launched.incarnation;
  place.cores = usable_cores();
  place.machine = boot_id();
  place.pid_space = namespace_inode("/proc/self/ns/pid");
  place.device = only_device_in_use();
  return place;
}

std::string encode_place(const PlaceRecord& record) {
  const auto& place = record.place;
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", place.host, place.host_name,
                     place.pid, place.world_rank, place.incarnation, fmt::join(place.cores, " "),
                     place.machine, place.pid_space, record.call, place.device);
}

PlaceRecord decode_place(int rank, const std::string& text) {
  const auto lines = split_text(text, '\n');
  const auto number = [&](size_t line, int64_t most = INT32_MAX) {
    return parse_integer(lines[line], 0, most).value_or(-1);
  };
  if (lines.size() != 10 || number(2) < 0 || number(3) < 0 || number(4) < 0 ||
      number(7, INT64_MAX) < 0 || number(8, INT64_MAX) < 0)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("rank {} wrote something into the store that does not describe a rank", rank))
        .with_rank(rank);
  PlaceRecord record;
  auto& place = record.place;
  place.host = lines[0];
  place.host_name = lines[1];
  place.pid = static_cast<int>(number(2));
  place.world_rank = static_cast<int>(number(3));
  place.incarnation = static_cast<int>(number(4));
  for (const auto& word : split_text(lines[5], ' '))
    if (const auto core = parse_integer(word, 0, 1 << 20))
      place.cores.push_back(static_cast<int>(*core));
  place.machine = lines[6];
  place.pid_space = number(7, INT64_MAX);
  record.call = number(8, INT64_MAX);
  place.device = lines[9];
  return record;
}

std::string encode_terms(const Options& options) {
  return fmt::format("{}\n{}\n{}", kVersion, options.rank, agreed_settings(options));
}

void check_terms(const std::string& theirs, const Options& options) {
  const auto lines = split_text(theirs, '\n');
  const auto rank = lines.size() < 3 ? std::nullopt : parse_integer(lines[1], 0, INT32_MAX);
  if (!rank)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("the store holds \"{:.60}\" where a rank's settings were expected; "
                            "give another TUTTI_JOB to what else uses this store",
                            theirs));
  const int other = static_cast<int>(*rank);
  if (lines[0] != kVersion)
    throw Error(ErrorCode::version,
                side_by_side("rank {} runs version {} of the library, rank {} runs version {}; all "
                             "ranks must run the same version",
                             other, lines[0], options.rank, std::string(kVersion)))
        .with_rank(other);
  const auto a = split_text(lines[2], ' '), b = split_text(agreed_settings(options), ' ');
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (a[i] != b[i])
      throw Error(
          ErrorCode::mismatch,
          side_by_side("rank {} has {}, rank {} has {}; all ranks must have the same setting",
                       other, a[i], options.rank, b[i]))
          .with_rank(other);
}

}  // namespace tutti
