//! The live page of `sluice up --page`, in a browser, with real tenants.

use sluice_e2e::browser::Chromium;

use crate::support::model::Stories;
use crate::support::tenant::{greedy, prompt};
use crate::support::{TestEnv, Yaml, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_real_tenants_while_they_answer_and_ends_with_them() {
    let Some(stories) = Stories::find("the page of real tenants") else { return };
    let world = TestEnv::new();
    let spec = "pacing: {mode: Immediate}, drainSeconds: 2";
    let yaml = Yaml::pool("32Mi").tenant("story", &stories.folder, "", spec).tenant(
        "tale",
        &stories.folder,
        "",
        spec,
    );
    let mut up = world.up(&yaml, &["--page", "0"]);
    let url = eventually("the page's line", async || {
        let stdout = world.stdout();
        let lines = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
        lines.lines().find_map(|line| line.strip_prefix("page ").map(str::to_owned))
    });
    let url = url.await;
    let (story, _tale) = (up.ready("story").await, up.ready("tale").await);
    let Some(chromium) = Chromium::find("the page of real tenants, drawn") else {
        return up.end_cleanly().await;
    };
    let (narrow, wide) = (chromium.page(360, true), chromium.page(1400, false));
    for sight in [&narrow, &wide] {
        sight.open(&url, ".gpu .moves");
        let states = "[...document.querySelectorAll('.tenant .state strong')].map((one) => one.textContent)";
        sight.until(&format!("{states}.join() === 'ready,ready'"));
    }
    let tokens = "Number(document.querySelector('.tenant .value').textContent)";
    wide.until(&format!("{tokens} === 0"));
    let answers = tokio::spawn(async move {
        loop {
            story.complete(&greedy(&prompt(1, 20), 200)).await.unwrap();
        }
    });
    for sight in [&narrow, &wide] {
        sight.until(&format!("{tokens} > 0"));
        sight.until("document.querySelector('.tenant .state strong').textContent === 'serving'");
        sight.until("document.querySelectorAll('.band').length >= 4");
        sight.is_narrow_and_small("real tenants");
    }
    answers.abort();
    wide.value("document.querySelector('.tenant a').click()");
    wide.until("document.activeElement.matches('.view h2')");
    assert!(wide.value("document.activeElement.innerText").as_str().unwrap().starts_with("story"));
    let why = wide.value("document.querySelector('.view .reasons').innerText");
    assert!(why.as_str().unwrap().contains("Its share of the GPU is"), "what `explain` says: {why}");
    up.end_cleanly().await;
    wide.until("document.getElementById('link').textContent.startsWith('The server does not answer')");
}
