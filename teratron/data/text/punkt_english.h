// Word lists of PunktSplitter::english.
#pragma once

#include <string_view>

namespace teratron {

/// Abbreviations without their final period.
inline constexpr std::string_view kEnglishAbbreviations =
    "a.d a.m adm al apr assn assoc aug ave b.a b.c b.s bldg blvd brig bros c.e ca capt cf cl cmdr co col "
    "comdr corp cpl "
    "d.c d.d.s d.phil dec dept dist dr e.g ed eds eq esq est etc feb fig figs fl ft gen gov hon hr i.e inc "
    "jan jr jun "
    "ll.b ll.d lt ltd m.a m.b.a m.d m.p maj mar messrs mfg mg mgr misc mme mr mrs ms msgr mt n.b n.y no nos "
    "nov oct op "
    "p.m p.s pg ph.d pl pp pres prof pt rd rep rev sec sen sept sgt sr st ste supt tel u.k u.n u.s u.s.a "
    "univ v viz vol "
    "vols vs yr yrs";
/// Words that rarely follow an abbreviation inside a sentence.
inline constexpr std::string_view kEnglishStarters =
    "although and as at because but during even he her his however i if in it its many most no nor on one "
    "she since so "
    "some still such that the their then there these they this those though thus under we what when where "
    "while who why "
    "with yet you";

}  // namespace teratron
