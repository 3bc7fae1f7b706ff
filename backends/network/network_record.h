#pragma once

#include <optional>
#include <string>

#include "tutti/collectives/thresholds.h"

namespace tutti {

/// Returns the figures of a network as one line, "between=25.1,1180 within=3.2,4100".
std::string encode(const NetworkFigures& figures);
/// Returns nothing if the text does not have the form of encode() or a figure is out of bounds.
std::optional<NetworkFigures> decode_figures(std::string_view text);

/// The figures that earlier starts measured: a file of lines "KEY FIGURES", one per network, the
/// newest last. Several jobs may use it at once. The last writer wins, and no reader sees half a
/// file.
class NetworkRecord {
 public:
  explicit NetworkRecord(std::string file) : file_(std::move(file)) {}

  /// Returns the figures saved under the key (one word). A missing file counts as an empty one.
  /// Throws Error(io | corrupt_data) with the file's name and, for damage, the line.
  std::optional<NetworkFigures> find(const std::string& key) const;
  /// Throws Error(io) with the file's name. Other lines stay, unless the file is damaged or has
  /// more than kMostLines. Only its owner can read the file.
  void save(const std::string& key, const NetworkFigures& figures) const;

  static constexpr size_t kMostLines = 256;

 private:
  const std::string file_;
};

}  // namespace tutti
