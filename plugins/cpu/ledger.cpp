#include "ledger.h"

#include <algorithm>

namespace {

int32_t refuse(EdgekvLedger& ledger, int32_t page, int32_t code) {
  ledger.culprit = page;
  return code;
}

// All are pages of the pool, each named once.
int32_t check(EdgekvLedger& ledger, const int32_t* pages, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (pages[i] < 0 || pages[i] >= ledger.num_pages)
      return refuse(ledger, pages[i], EDGEKV_LEDGER_OUTSIDE);
  const int64_t stamp = ++ledger.stamp;
  for (int64_t i = 0; i < n; ++i) {
    int64_t& seen = ledger.stamps[pages[i]];
    if (seen == stamp) return refuse(ledger, pages[i], EDGEKV_LEDGER_REPEATED);
    seen = stamp;
  }
  return EDGEKV_LEDGER_DONE;
}

int32_t check_held(EdgekvLedger& ledger, const int32_t* pages, int64_t n) {
  if (const int32_t code = check(ledger, pages, n)) return code;
  for (int64_t i = 0; i < n; ++i)
    if (!ledger.refs[pages[i]]) return refuse(ledger, pages[i], EDGEKV_LEDGER_UNHELD);
  return EDGEKV_LEDGER_DONE;
}

int32_t check_kept(EdgekvLedger& ledger, const int32_t* pages, int64_t n) {
  if (const int32_t code = check(ledger, pages, n)) return code;
  for (int64_t i = 0; i < n; ++i)
    if (!ledger.kept[pages[i]]) return refuse(ledger, pages[i], EDGEKV_LEDGER_UNKEPT);
  return EDGEKV_LEDGER_DONE;
}

// Nobody holds or fences the page any more. The last one to retire is the first to be taken.
void retire(EdgekvLedger& ledger, int32_t page) {
  if (ledger.kept[page])
    ++ledger.num_cached;
  else
    ledger.free[--ledger.top] = page;
}

void note_peak(EdgekvLedger& ledger) {
  ledger.peak = std::max(ledger.peak, ledger.top - ledger.num_cached);
}

}  // namespace

int32_t edgekv_ledger_take(EdgekvLedger* ledger, int32_t* pages, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t page = ledger->free[ledger->top + i];
    ledger->refs[page] = 1;
    ++ledger->times_taken[page];
    pages[i] = page;
  }
  ledger->top += n;
  note_peak(*ledger);
  return EDGEKV_LEDGER_DONE;
}

int32_t edgekv_ledger_retain(EdgekvLedger* ledger, const int32_t* pages, int64_t n) {
  if (const int32_t code = check_held(*ledger, pages, n)) return code;
  for (int64_t i = 0; i < n; ++i) ++ledger->refs[pages[i]];
  return EDGEKV_LEDGER_DONE;
}

int32_t edgekv_ledger_release(EdgekvLedger* ledger, const int32_t* pages, int64_t n) {
  if (const int32_t code = check_held(*ledger, pages, n)) return code;
  for (int64_t i = n - 1; i >= 0; --i) {
    const int32_t page = pages[i];
    if (--ledger->refs[page]) continue;
    if (ledger->fences[page])
      ++ledger->num_in_flight;
    else
      retire(*ledger, page);
  }
  return EDGEKV_LEDGER_DONE;
}

int32_t edgekv_ledger_keep(EdgekvLedger* ledger, const int32_t* pages, int64_t n) {
  if (const int32_t code = check_held(*ledger, pages, n)) return code;
  for (int64_t i = 0; i < n; ++i) ledger->kept[pages[i]] = 1;
  return EDGEKV_LEDGER_DONE;
}

int32_t edgekv_ledger_hold(EdgekvLedger* ledger, const int32_t* pages, int64_t n) {
  if (const int32_t code = check_kept(*ledger, pages, n)) return code;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t page = pages[i];
    if (ledger->refs[page]++) continue;
    --(ledger->fences[page] ? ledger->num_in_flight : ledger->num_cached);
  }
  note_peak(*ledger);
  return EDGEKV_LEDGER_DONE;
}

int32_t edgekv_ledger_forget(EdgekvLedger* ledger, const int32_t* pages, int64_t n) {
  if (const int32_t code = check_kept(*ledger, pages, n)) return code;
  for (int64_t i = n - 1; i >= 0; --i) {
    const int32_t page = pages[i];
    ledger->kept[page] = 0;
    if (ledger->refs[page] || ledger->fences[page]) continue;
    --ledger->num_cached;
    retire(*ledger, page);
  }
  return EDGEKV_LEDGER_DONE;
}

int32_t edgekv_ledger_fence(EdgekvLedger* ledger, const int32_t* pages, const int64_t* counts,
                            int64_t num_rows) {
  int64_t n = 0;
  for (int64_t row = 0; row < num_rows; n += counts[row++])
    if (const int32_t code = check_held(*ledger, pages + n, counts[row])) return code;
  for (int64_t i = 0; i < n; ++i) ++ledger->fences[pages[i]];
  return EDGEKV_LEDGER_DONE;
}

int32_t edgekv_ledger_unfence(EdgekvLedger* ledger, const int32_t* pages, int64_t n,
                              int32_t* scratch) {
  int64_t num_idle = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t page = pages[i];
    // A page of several rows comes up once as the last fence falls.
    if (--ledger->fences[page] == 0 && !ledger->refs[page]) scratch[num_idle++] = page;
  }
  std::sort(scratch, scratch + num_idle);
  for (int64_t i = num_idle - 1; i >= 0; --i) retire(*ledger, scratch[i]);
  ledger->num_in_flight -= num_idle;
  return EDGEKV_LEDGER_DONE;
}
