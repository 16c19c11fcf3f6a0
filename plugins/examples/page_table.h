// A bounded context over an endless stream, in C++: which page holds what, and where it stands now.
//
// Owns: the pages of one sequence, in logical order, each with its valid tokens and its shift, and the
// arrays the operator wants for a step (docs/paged_attention.md). Guarantees: a step that does not fit
// changes nothing; letting a segment go moves no key: the entries leave the table and the shifts of
// later pages fall by its tokens. Knows no device.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace edgekv::example {

// The operator's arrays for one step of one sequence, and the positions for the graph.
struct StepTables {
  std::vector<int32_t> page_table;     // (1, max_columns, 3): page id, valid tokens, shift; -1 = unused
  std::vector<int32_t> query_starts;   // (2)
  std::vector<int32_t> slot_mapping;   // (T)
  std::vector<int32_t> kv_limits;      // (T)
  std::vector<int32_t> query_indices;  // (T)
  std::vector<int64_t> position_ids;   // (T)
};

class PageTable {
 public:
  PageTable(int32_t num_pages, int32_t page_size, int32_t max_columns)
      : page_size_(page_size), max_columns_(max_columns) {
    for (int32_t page = num_pages; page-- > 0;) free_.push_back(page);
  }

  // Plans `count` tokens. `new_segment`: a frame or a prompt, on pages of its own; otherwise they go on
  // where the last segment ends, as generated tokens do. False when pages or columns are missing: let a
  // segment go and ask again.
  bool append(int32_t count, bool new_segment, StepTables& step) {
    const bool fresh = new_segment || segments_.empty();
    const int32_t room = fresh ? 0 : room_behind(segments_.back());
    const int32_t pages = count <= room ? 0 : (count - room + page_size_ - 1) / page_size_;
    if (pages > int32_t(free_.size()) || num_entries() + pages > max_columns_) return false;
    if (fresh) segments_.emplace_back();
    Segment& segment = segments_.back();
    step.slot_mapping.clear(), step.kv_limits.clear();
    step.query_indices.clear(), step.position_ids.clear();
    for (int32_t i = 0; i < count; ++i) {
      if (room_behind(segment) == 0) {
        segment.entries.push_back({free_.back(), 0, 0});
        free_.pop_back();
      }
      Entry& entry = segment.entries.back();
      step.slot_mapping.push_back(entry.page * page_size_ + entry.valid++);
      step.position_ids.push_back(num_tokens_);    // where the token stands now
      step.query_indices.push_back(num_tokens_);   // its logical index: the same while one row is kept
      step.kv_limits.push_back(++num_tokens_);     // causal: it sees everything up to itself
      ++segment.num_tokens;
    }
    step.query_starts = {0, count};
    fill_table(step.page_table);
    return true;
  }

  // Lets the oldest segment behind the first `pinned` ones go. False when there is none.
  bool drop_oldest(size_t pinned) {
    if (segments_.size() <= pinned) return false;
    const Segment gone = segments_[pinned];
    segments_.erase(segments_.begin() + std::ptrdiff_t(pinned));
    for (const Entry& entry : gone.entries) free_.push_back(entry.page);
    for (size_t i = pinned; i < segments_.size(); ++i)
      for (Entry& entry : segments_[i].entries) entry.shift -= gone.num_tokens;
    num_tokens_ -= gone.num_tokens;
    return true;
  }

  int32_t num_tokens() const { return num_tokens_; }
  int32_t num_free_pages() const { return int32_t(free_.size()); }

 private:
  struct Entry {
    int32_t page, valid, shift;
  };
  struct Segment {
    std::vector<Entry> entries;
    int32_t num_tokens = 0;
  };

  // Tokens that the segment's last page still takes. One that was shifted takes none: a key written there
  // now would stand at its position plus the page's old shift.
  int32_t room_behind(const Segment& segment) const {
    if (segment.entries.empty() || segment.entries.back().shift != 0) return 0;
    return page_size_ - segment.entries.back().valid;
  }

  int32_t num_entries() const {
    size_t count = 0;
    for (const Segment& segment : segments_) count += segment.entries.size();
    return int32_t(count);
  }

  void fill_table(std::vector<int32_t>& table) const {
    table.clear();
    for (const Segment& segment : segments_)
      for (const Entry& entry : segment.entries)
        table.insert(table.end(), {entry.page, entry.valid, entry.shift});
    while (table.size() < size_t(max_columns_) * 3) table.insert(table.end(), {-1, 0, 0});
  }

  int32_t page_size_, max_columns_, num_tokens_ = 0;
  std::vector<int32_t> free_;
  std::deque<Segment> segments_;
};

}  // namespace edgekv::example
