#pragma once

#include <string>

#include "tutti/backends/backend.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Where this process runs and as whom it was launched.
Place own_place(const Options& options, const LaunchedRank& launched);

/// A Place as the ranks of an attempt leave it in the store, and who left it: `call` is a number
/// that no other attempt of that process has.
struct PlaceRecord {
  Place place;
  int64_t call = 0;
};
std::string encode_place(const PlaceRecord& record);
/// Throws Error(corrupt_data) naming `rank` for text that is no such record.
PlaceRecord decode_place(int rank, const std::string& text);

/// The settings that must be equal on all ranks, and the version, as one text.
std::string encode_terms(const Options& options);
/// Throws Error(version | mismatch) that names both ranks if these terms, of another rank, are not
/// the own ones.
void check_terms(const std::string& theirs, const Options& options);

}  // namespace tutti
