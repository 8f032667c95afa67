//! The profile counts sectors and wavefronts by source line, as closed forms say.

use sluice_ptx::{Arena, Launch, Mode, Options, SourceLine, Traffic, launch};

use crate::support::module;

/// The traffic of source line 5 when one warp runs `body`.
fn traffic(body: &str) -> Traffic {
    let module = module(&format!(".loc 1 5 1\n{body}\n.loc 1 6 1\nmov.u32 %r1, 0;"));
    let mut arena = Arena::new();
    let params = arena.alloc_with(&[0u32; 4096]).to_le_bytes();
    let what = Launch { grid: [1; 3], block: [32, 1, 1], dynamic_shared_bytes: 0, params: &params };
    let options = Options { mode: Mode::Fast, profile: true, ..Options::default() };
    let stats = launch(module.kernel("k").unwrap(), &what, &arena, &options).unwrap();
    assert_eq!(stats.lines.keys().collect::<Vec<_>>(), [&SourceLine { file: 1, line: 5 }]);
    assert_eq!(stats.traffic(), stats.lines[&SourceLine { file: 1, line: 5 }]);
    stats.traffic()
}

#[test]
fn sectors_follow_from_the_stride_of_the_lanes() {
    for (stride, sectors) in [(4, 4), (8, 8), (16, 16), (32, 32), (64, 32), (0, 1)] {
        let found = traffic(&format!("mad.wide.u32 %rd1, %r0, {stride}, %rd0; ld.global.u32 %r1, [%rd1];"));
        let least = if stride == 0 { 1 } else { 4 };
        let wanted = Traffic { global_requests: 1, sectors, least_sectors: least, ..Traffic::default() };
        assert_eq!(found, wanted, "stride {stride}");
    }
}

#[test]
fn wavefronts_follow_from_bank_conflicts() {
    // A stride of 2^k words has 2^k lanes on each bank that is used; an odd one has none twice.
    for (words, wavefronts) in [(1, 1), (2, 2), (4, 4), (8, 8), (3, 1), (7, 1), (0, 1)] {
        let found = traffic(&format!(
            "mov.u32 %r1, s; mad.lo.u32 %r2, %r0, {}, %r1; st.shared.u32 [%r2], 1;",
            4 * words
        ));
        let wanted = Traffic { shared_requests: 1, wavefronts, least_wavefronts: 1, ..Traffic::default() };
        assert_eq!(found, wanted, "stride {words}");
    }
    let wide = traffic(
        "mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 16, %r1; st.shared.v4.u32 [%r2], {%r0, %r0, %r0, %r0};",
    );
    assert_eq!((wide.wavefronts, wide.least_wavefronts), (4, 4));
}
