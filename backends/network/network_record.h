#pragma once

#include <optional>
#include <string>

#include "tutti/collectives/thresholds.h"

namespace tutti {

/// Figures of a network as one line, "between=25.1,1180 within=3.2,4100".
std::string encode(const NetworkFigures& figures);
/// Nothing if the text is none of encode()'s, or says what no network does.
std::optional<NetworkFigures> decode_figures(std::string_view text);

/// What earlier starts measured: a file of lines "KEY FIGURES", a network each, the newest last.
/// Several jobs may use it at once; the one that writes last wins, and no reader sees half a file.
class NetworkRecord {
 public:
  explicit NetworkRecord(std::string file) : file_(std::move(file)) {}

  /// What is saved under the key (one word). No file is as an empty one. Throws Error(io |
  /// corrupt_data) that names the file and, where there is one, the line.
  std::optional<NetworkFigures> find(const std::string& key) const;
  /// Throws Error(io) that names the file. What others have saved stays, unless it is damaged or
  /// more than kMostLines; the file is for its owner alone.
  void save(const std::string& key, const NetworkFigures& figures) const;

  static constexpr size_t kMostLines = 256;

 private:
  const std::string file_;
};

}  // namespace tutti
