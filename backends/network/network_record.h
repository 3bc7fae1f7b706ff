#pragma once

#include <optional>
#include <string>

#include "tutti/collectives/thresholds.h"

namespace tutti {

/// Returns the figures of a network as one line, "between=25.1,1180 within=3.2,4100".
std::string encode(const NetworkFigures& figures);
/// Parses a line that encode() has made. Returns nothing if it has another form or if a figure is
/// out of bounds.
std::optional<NetworkFigures> decode_figures(std::string_view text);

/// A file of figures that earlier jobs measured. It has lines "KEY FIGURES", one per network, the
/// newest last. Several jobs may use it at the same time. The last writer wins, and a reader always
/// sees a whole file.
class NetworkRecord {
 public:
  explicit NetworkRecord(std::string file) : file_(std::move(file)) {}

  /// Returns the figures that were saved under the key (one word), or nothing. A missing file
  /// counts as empty. Throws Error(io | corrupt_data), which names the file and, if it is damaged,
  /// the line.
  std::optional<NetworkFigures> find(const std::string& key) const;
  /// Saves the figures under the key. Other lines stay, unless the file is damaged or has more than
  /// kMostLines. Only the file's owner can read it. Throws Error(io), which names the file.
  void save(const std::string& key, const NetworkFigures& figures) const;

  static constexpr size_t kMostLines = 256;

 private:
  const std::string file_;
};

}  // namespace tutti
