//! What an operator does to one of two rows of a pool while it is used: no request fails of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{STEP, SseStream, TestApp, eventually};

/// Clients at once, of each way to ask: more than the slots, so that some always wait.
const EACH: usize = 3;
/// What a row of the pool is: a reply takes 120 ms, a new engine 300 ms.
const FLAGS: [&str; 6] = ["--tokens", "24", "--decode-us-per-token", "5000", "--load-ms", "300"];

/// Clients that ask one thing after the other, and what became of it.
struct Load<'a> {
    app: &'a TestApp,
    over: Cell<bool>,
    served: Cell<u32>,
    failed: RefCell<Vec<String>>,
    rows: RefCell<BTreeSet<String>>,
}

impl Load<'_> {
    async fn client(&self, ask: Ask, number: usize) {
        let mut turn = 0;
        while !self.over.get() {
            match ask.once(self.app, &format!("client {number} of {ask:?}, question {turn}")).await {
                Ok(row) => {
                    self.served.set(self.served.get() + 1);
                    self.rows.borrow_mut().insert(row);
                }
                Err(why) => self.failed.borrow_mut().push(format!("{ask:?} {number}.{turn}: {why}")),
            }
            turn += 1;
        }
    }

    /// Waits until so many more were served; gives the rows that served them.
    async fn more(&self, count: u32) -> BTreeSet<String> {
        let wanted = self.served.get() + count;
        self.rows.borrow_mut().clear();
        eventually("the load is served", STEP, async || (self.served.get() >= wanted || !self.failed.borrow().is_empty()).then_some(()))
            .await;
        assert!(self.failed.borrow().is_empty(), "{:#?}\nserve:\n{}", self.failed.borrow(), self.app.log());
        self.rows.borrow().clone()
    }
}

/// Ways to ask.
#[derive(Debug, Clone, Copy)]
enum Ask {
    Whole,
    Streamed,
    Messages,
}

impl Ask {
    /// One request; the row that answered, or what went wrong with it.
    async fn once(self, app: &TestApp, text: &str) -> Result<String, String> {
        let path = if matches!(self, Self::Messages) { "/v1/messages" } else { "/v1/chat/completions" };
        let stream = !matches!(self, Self::Whole);
        let body = json!({"model": "chat", "max_tokens": 100, "stream": stream, "messages": [{"role": "user", "content": text}]});
        let reply = app.client.post(app.url(path)).json(&body).send().await.map_err(|error| format!("{error:?}"))?;
        let (status, headers) = (reply.status(), reply.headers().clone());
        if status != StatusCode::OK {
            return Err(format!("{status}: {}", reply.text().await.unwrap_or_default()));
        }
        if stream {
            let mut events = SseStream::new(reply);
            let (mut words, mut last) = (0, String::new());
            while let Some(event) = events.next().await.map_err(|error| format!("broken off: {error:?}"))? {
                words += u32::from(event.data.contains("\"content\":\" ") || event.data.contains("text_delta"));
                last = event.data;
            }
            let ended = last == "[DONE]" || last.contains("message_stop");
            if !ended || words != 24 {
                return Err(format!("{words} words, and at last {last}"));
            }
        } else {
            let reply: Value = reply.json().await.map_err(|error| format!("broken off: {error:?}"))?;
            let said = reply["choices"][0]["message"]["content"].as_str().map(str::len);
            if said != Some(24 * 4) {
                return Err(format!("not whole: {reply}"));
            }
        }
        Ok(headers.get("x-lifeboat-row").and_then(|row| row.to_str().ok()).unwrap_or_default().to_owned())
    }
}

/// Two ready rows of one name, clients on them, and something done to the rows meanwhile. No request may fail.
async fn nothing_fails_while(change: impl AsyncFnOnce(&TestApp, &[String; 2], &Load<'_>)) {
    let app = TestApp::start().await;
    let ids = [app.create_sim_row("chat", &FLAGS).await, app.create_sim_row("chat", &FLAGS).await];
    for id in &ids {
        app.wait_state(id, "ready").await;
    }
    let load = Load { app: &app, over: Cell::new(false), served: Cell::new(0), failed: RefCell::default(), rows: RefCell::default() };
    let clients = [Ask::Whole, Ask::Streamed, Ask::Messages]
        .map(|ask| join_all((0..EACH).map(|number| load.client(ask, number)).collect::<Vec<_>>()));
    let changed = async {
        let both = BTreeSet::from(ids.clone());
        assert_eq!(load.more(24).await, both, "both rows serve before");
        change(&app, &ids, &load).await;
        assert_eq!(load.more(48).await, both, "both rows serve afterwards");
        load.over.set(true);
    };
    tokio::join!(join_all(clients), changed);
    assert!(load.failed.borrow().is_empty(), "{:#?}\n{} were served\nserve:\n{}", load.failed.borrow(), load.served.get(), app.log());
    for id in &ids {
        app.wait_row(id, "every slot is free", Duration::from_secs(2), |row| row["slots_in_use"] == 0).await;
    }
}

fn pid(row: &Value) -> u64 {
    row["pid"].as_u64().unwrap_or_else(|| panic!("no pid: {row:#}"))
}

#[tokio::test]
async fn a_rolling_restart_of_a_pool_fails_no_request() {
    nothing_fails_while(async |app, ids, load| {
        for _ in 0..2 {
            for id in ids {
                let before = pid(&app.row(id).await);
                app.act(id, "restart").await;
                let again = |row: &Value| row["state"] == "ready" && pid(row) != before;
                app.wait_row(id, "the row is ready again, by another process", STEP, again).await;
                load.more(9).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn an_edit_of_a_row_in_use_fails_no_request() {
    nothing_fails_while(async |app, ids, load| {
        for slots in [3, 1, 2] {
            app.edit_row(&ids[0], &json!({"slots": slots})).await;
            let in_force = |row: &Value| row["state"] == "ready" && row["resolved"]["slots"] == slots;
            app.wait_row(&ids[0], "the edit is in force", STEP, in_force).await;
            load.more(9).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_row_that_is_stopped_and_started_in_use_fails_no_request() {
    nothing_fails_while(async |app, ids, load| {
        for id in ids {
            app.act(id, "stop").await;
            app.wait_state(id, "stopped").await;
            // Those that it served before may have been counted late.
            load.more(12).await;
            assert!(!load.more(12).await.contains(id), "the other row serves alone");
            app.act(id, "start").await;
            app.wait_state(id, "ready").await;
        }
    })
    .await;
}
