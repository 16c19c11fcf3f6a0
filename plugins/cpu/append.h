// Tokens that join a sequence: planned by one call, counted by another, plain memory, no runtime.
//
// Guarantees: a call checks everything before it changes anything. Knows neither what pages hold
// nor who else holds them. edgekv/cache/planning.py owns the memory and says what it means.
#pragma once

#include <cstdint>

#include "layout.h"
#include "ledger.h"

extern "C" {

// A sequence, and the append that it has pending.
struct EdgekvAppend {
  EdgekvLayout layout;  // its memory has room for max_pages entries and segments
  EdgekvLedger* ledger;
  int64_t page_size;
  int64_t max_pages;
  int64_t end_position;  // positions stay below it, at most 2^31 - 1
  int32_t* taken;        // (num_taken,) pages of the plan, the copy's target first
  int64_t num_taken;
  int64_t num_drawn;     // the first of them, which the sequence had reserved
  int64_t num_tokens;
  int64_t tail_tokens;   // that go into the page the sequence ends with
  int64_t copies;        // 1: that page is copied first, because others hold it or a step uses it
  int64_t extends;       // 1: the last segment goes on
  int64_t uniform;       // 1: every token advances every axis by one
};

// 0 is done. Otherwise nothing has changed.
enum EdgekvAppendCode {
  EDGEKV_APPEND_DONE = 0,
  EDGEKV_APPEND_EMPTY = 1,        // there is no segment to extend
  EDGEKV_APPEND_OTHER_KIND = 2,   // the last segment is of another kind
  EDGEKV_APPEND_OTHER_INDEX = 3,  // the last segment has another index
  EDGEKV_APPEND_NEGATIVE = 4,     // a relative position is
  EDGEKV_APPEND_NO_ROOM = 5,      // beyond max_pages or end_position
  EDGEKV_APPEND_ADVANCE = 6,      // the next position would be no int32
  EDGEKV_APPEND_NOT_FREE = 7,     // num_taken - num_drawn are more than are free
  EDGEKV_APPEND_UNHELD = 8,       // the page that a copy replaces is held by nobody
};

#define EDGEKV_APPEND_CALL __attribute__((visibility("default"))) int32_t

// How many pages a plan of `num_tokens` > 0 tokens of this kind would take; below 0, the code that
// refuses it.
__attribute__((visibility("default"))) int64_t edgekv_append_pages(const EdgekvAppend*,
                                                                   int32_t kind, int64_t num_tokens,
                                                                   int32_t extend);

// Takes the pages of `num_tokens` > 0 tokens, first those of `own` (num_own,), held already, that
// no step in flight uses, then free ones; stages their entries behind the table's, and fills
// `tokens` (slots, indices, limits, advance, pages taken) and `positions`. An `index` of -1 is that
// of the segment that is extended.
EDGEKV_APPEND_CALL edgekv_append_plan(
    EdgekvAppend*, int32_t kind, int64_t num_tokens, int32_t extend, int64_t index,
    const int64_t* relative,  // (num_axes, num_tokens) from next_position on; null: they count up
    const int64_t* advance,   // (num_axes,) >= 0; null: behind the largest position of any axis
    const int64_t* runs,      // (num_runs, 2) start, stop: tokens that see to the end of their run
    int64_t num_runs, const int32_t* own, int64_t num_own,
    int32_t* tokens,      // (3 num_tokens + num_axes + 1 + pages of num_tokens,)
    int64_t* positions);  // (num_axes, num_tokens)

// Tables of one step over `num_appends` appends of one ledger, and a fence around every page in
// them. `page_table` is (num_appends, num_entries, num_columns): id, valid tokens and shifts as the
// step must see them, id -1 behind the last; `query_starts` is (num_appends + 1,). `fenced` gets,
// append by append, the pages in the table, then those taken: `counts` (num_appends,) says how
// many. Returns a code of edgekv_ledger_fence.
EDGEKV_APPEND_CALL edgekv_append_begin(const EdgekvAppend* const* appends, int64_t num_appends,
                                       int64_t num_entries, int64_t num_columns,
                                       int32_t* page_table, int32_t* query_starts, int32_t* fenced,
                                       int64_t* counts);

// Counts the planned tokens; a new segment gets `id`, `index` and `time_s`. The page that a copy
// replaces loses a holder. What counts pages, segments and tokens is the caller's to raise.
EDGEKV_APPEND_CALL edgekv_append_commit(EdgekvAppend*, int32_t kind, int64_t id, int64_t index,
                                        double time_s);
}
